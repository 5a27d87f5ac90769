"""Every table and figure of the paper, ours beside the paper's.

catalogue   the tables and figures, and which of our cells stand beside each of the paper's figures
cells       what a cell is: a coreset, and one way to judge it
judge       making and judging cells
schedule    the order of cells, a budget of time, several devices
tables      from records to tables
"""
