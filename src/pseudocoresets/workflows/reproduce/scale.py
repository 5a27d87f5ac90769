"""How large a reproduction is: the paper's own size, less of it, or a smoke test of the whole path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pseudocoresets.data.corruptions import SEVERITIES, SHIFT_CORRUPTIONS
from pseudocoresets.evaluation.attacks import (
    APGD,
    ATTACKS,
    EPSILONS,
    FAB,
    PGD,
    Attack,
    Square,
    Targeted,
    apgd_towards,
    cross_entropy,
)
from pseudocoresets.evaluation.report import CONTROL_DRAWS
from pseudocoresets.workflows.plan import Plan, make_plan
from pseudocoresets.workflows.reproduce.cells import VARIANTS, ReproductionCell

RATES = (1.0, 10.0, 100.0, 1000.0)
"""Of the images' learning rate, gamma; the paper's."""
CROSS_STEPS = 1000
"""The most of a chain of another network, most of which are slow; presets were made for ConvNet."""
SMOKE_NETWORKS = {
    "convnet:depth=3,width=128": "convnet:depth=2,width=4",
    "convnet:depth=4,width=128": "convnet:depth=2,width=4",
    "convnet:depth=3,width=256": "convnet:depth=2,width=6",
    "convnet:depth=5,width=128": "convnet:depth=1,width=4",
    "alexnet": "mlp:depth=1,width=8",
    "vgg11": "mlp:depth=1,width=12",
    "resnet18": "mlp:depth=2,width=8",
}


@dataclass(frozen=True)
class Scale:
    """What is other than in the presets, and how much of each judgement there is."""

    expert_count: int | None = None
    expert_epochs: int | None = None
    iterations: int | None = None
    """The most of any construction."""
    shares: Mapping[tuple[str, int], float] = field(default_factory=dict)
    """Of a variant at so many images per class, the part of its preset's iterations that is run; 1 where none is."""
    rates: Sequence[float] = RATES
    rate_iterations: int = 200
    """Of each short construction on whose held-out accuracy a learning rate is chosen."""
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options by variant."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    control_draws: int = CONTROL_DRAWS
    test_images: int | None = None
    """The first so many; None is all."""
    corruptions: Sequence[str] = SHIFT_CORRUPTIONS
    severities: Sequence[int] = SEVERITIES
    attacks: Mapping[str, Sequence[Attack]] = field(default_factory=lambda: ATTACKS)
    epsilons: Sequence[float] = EPSILONS
    attacked_images: int = 1000
    is_smoke: bool = False

    def cell(self, cell: ReproductionCell) -> ReproductionCell:
        """The cell that is computed in its place: in a smoke test, a small network on the digits."""
        if not self.is_smoke:
            return cell
        made = replace(
            cell.made,
            dataset="digits",
            ipc=min(cell.made.ipc, 2),
            network=SMOKE_NETWORKS.get(cell.made.network, cell.made.network),
            options=tuple((name, value if name == "sigma" else min(value, 2)) for name, value in cell.made.options),
        )
        network = None if cell.network is None else SMOKE_NETWORKS.get(cell.network, cell.network)
        return replace(cell, made=made, network=network)

    def plan(self, cell: ReproductionCell) -> Plan:
        """Everything that decides the cell's outcome."""
        made, variant = cell.made, VARIANTS[cell.made.variant]
        plain = {} if made.augment else {"augment": False}
        plan = make_plan(
            dataset=made.dataset,
            method=variant.method,
            network=made.network,
            ipc=made.ipc,
            protocol=cell.protocol,
            sampler=cell.sampler,
            elsewhere=cell.network is not None,
            preset="quick" if self.is_smoke and variant.preset != "published" else variant.preset,
            expert_count=self.expert_count,
            experts={} if self.expert_epochs is None else {"epochs": self.expert_epochs},
            construction=plain,
            sampling={**self.sampling, **plain},
            method_options={**self.methods.get(made.variant, {}), **dict(made.options)},
        ).with_seed(made.seed)
        if cell.network is not None:
            steps = min(CROSS_STEPS, plan.sampling.steps)
            plan = replace(plan, sampling=replace(plan.sampling, steps=steps))
        return replace(
            self._shortened(plan, self.shares.get((made.variant, made.ipc), 1.0)), control_draws=self.control_draws
        )

    def _shortened(self, plan: Plan, share: float) -> Plan:
        def shortened(settings: Any) -> Any:
            wanted = max(1, round(share * settings.iterations))
            return replace(settings, iterations=wanted if self.iterations is None else min(self.iterations, wanted))

        before = tuple(replace(stage, construction=shortened(stage.construction)) for stage in plan.before)
        return replace(plan, construction=shortened(plan.construction), before=before)


SMOKE = Scale(
    expert_count=2,
    expert_epochs=6,
    iterations=2,
    rates=(10.0, 100.0),
    rate_iterations=1,
    methods={"published": {"steps": 3}},
    sampling={"chains": 2, "steps": 6, "samples": 2},
    control_draws=1,
    test_images=50,
    corruptions=SHIFT_CORRUPTIONS,
    severities=(3,),
    attacks={
        "pgd": (PGD(2),),
        "autoattack-style": (
            APGD(cross_entropy, 2),
            Targeted(partial(apgd_towards, steps=2), 2),
            Targeted(partial(FAB, steps=2), 2),
            Square(2),
        ),
    },
    epsilons=(8 / 255,),
    attacked_images=20,
    is_smoke=True,
)
"""The whole path on the digits; its figures mean nothing."""
