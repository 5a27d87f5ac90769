"""Private experts and coresets: what their files promise, and what is refused because it would break the promise."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small import Invoke
from torch import Tensor

import pseudocoresets as pc
from pseudocoresets.backends import PlainBackend, choose_backend, plain
from pseudocoresets.construction.loop import image_task
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.core.devices import HOST
from pseudocoresets.core.seeds import Randomness
from pseudocoresets.data import Dataset
from pseudocoresets.data.augmentation import Transformation
from pseudocoresets.dp import (
    Budget,
    ExampleVectors,
    Guarantee,
    Release,
    SystemEntropy,
    per_example_gradients,
    spent,
)
from pseudocoresets.methods.condensation.private_matching import PrivateMatching
from pseudocoresets.methods.problem import RealData
from pseudocoresets.sources.experts import Experts, ExpertSettings, private
from pseudocoresets.sources.experts.private import PrivateTrainer
from pseudocoresets.sources.experts.store import PrivateTraining

pytest.importorskip("dp_accounting")
BUDGET = Budget(8.0, 1e-4)
NETWORK = "mlp:depth=1,width=8"
TRAINING = {"epochs": 2, "batch_size": 400, "learning_rate": 0.5, "augment": False, "device": "cpu"}
FEW = {"iterations": 3, "ipc": 1, "device": "cpu"}


@pytest.fixture(scope="module")
def data() -> Dataset:
    return pc.load_dataset("digits").publicly_normalised()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, data: Dataset) -> Path:
    folder = tmp_path_factory.mktemp("private") / "experts"
    pc.train_experts(data, NETWORK, 2, out=folder, privacy=BUDGET, **TRAINING)
    return folder


@pytest.fixture(scope="module")
def trained(folder: Path) -> Experts:
    return pc.load_experts(folder)


@pytest.fixture(scope="module")
def matched(data: Dataset) -> pc.Coreset:
    options = {"networks": 3, "at_once": 2}
    return pc.construct(data, None, "dm", network=NETWORK, privacy=BUDGET, method_options=options, **FEW | {"ipc": 3})


def test_experts_share_one_budget(trained: Experts) -> None:
    assert trained.guarantee is not None
    (release,) = trained.guarantee.releases
    assert release.steps == 2 * 2 * 3  # experts, epochs, steps per epoch of 1,300 images in batches of 400
    assert spent(trained.guarantee.releases, BUDGET.delta) <= BUDGET.epsilon


def test_experts_learn_and_are_never_the_same_twice(data: Dataset, trained: Experts) -> None:
    training = TRAINING | {"epochs": 6, "learning_rate": 2.0}
    again = pc.train_experts(data, NETWORK, 1, privacy=Budget(50.0, 1e-4), **training)
    assert torch.equal(again.snapshot(0, 0), trained.snapshot(0, 0))
    assert not torch.equal(again.snapshot(0, 1), trained.snapshot(0, 1))
    scores = again.network.logits(again.snapshot(0, -1), data.transform(data.test.images))
    assert float((scores.argmax(1) == data.test.labels).float().mean()) > 0.5


def test_a_step_in_which_nobody_takes_part_is_noise(data: Dataset) -> None:
    network = pc.build_network(NETWORK, data.shape, 10)
    hardly_ever = Guarantee(1.0, 1e-5, "none", 1300, (Release("steps", 2.0, 1e-12),))
    settings = ExpertSettings(batch_size=1, augment=False)
    training = PrivateTraining(BUDGET, 3.0, hardly_ever)
    trainer = PrivateTrainer(data, network, settings, HOST, PlainBackend(), training, SystemEntropy())
    noise = trainer.gradient(network.initialise(0), Randomness.for_purpose(0, "test")) * 1e-12 * 1300
    assert float(noise.double().std()) == pytest.approx(2.0 * 3.0, rel=5 / len(noise) ** 0.5)


def test_a_store_tells_nothing_of_the_data_but_what_is_public(folder: Path, data: Dataset) -> None:
    text = (folder / "store.json").read_text()
    assert data.fingerprint not in text and data.train.fingerprint not in text
    changed = data.train.images.clone()
    changed[0] = 0
    other = replace(data, train=replace(data.train, images=changed), transform=data.transform_source)
    assert other.public_fingerprint == data.public_fingerprint


def test_a_killed_run_goes_on_within_its_budget(folder: Path, data: Dataset, trained: Experts) -> None:
    (folder / "expert-0001.safetensors").unlink()
    again = pc.train_experts(data, NETWORK, 2, out=folder, privacy=BUDGET, **TRAINING)
    assert again.guarantee is not None and trained.guarantee is not None and len(again) == 2
    before, after = trained.guarantee.releases[0], again.guarantee.releases[0]
    assert replace(after, identity=before.identity) == before
    assert after.identity != before.identity  # its noise is another, so what was made before counts apart
    assert pc.load_experts(folder).guarantee == again.guarantee
    with pytest.raises(pc.InputError, match="another number of them"):
        pc.train_experts(data, NETWORK, 3, out=folder, privacy=BUDGET, **TRAINING)
    with pytest.raises(pc.InputError, match="another budget"):
        pc.train_experts(data, NETWORK, 2, out=folder, privacy=Budget(9.0, 1e-4), **TRAINING)


def test_a_coreset_of_private_experts_has_their_guarantee(data: Dataset, trained: Experts, tmp_path: Path) -> None:
    options = {"expert_epochs": 1, "max_start_epoch": 0, "steps": 2}
    made = pc.construct(data, trained, "cd", method_options=options, **FEW)
    assert made.guarantee == trained.guarantee
    assert made.y.tolist() == list(range(10))
    made.save(tmp_path / "c.safetensors")
    assert pc.Coreset.load(tmp_path / "c.safetensors").guarantee == trained.guarantee


def test_the_data_are_read_once(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three iterations, and one pass for each network and one for the counts."""
    passes = []
    batches = RealData.batches
    monkeypatch.setattr(RealData, "batches", lambda self: passes.append(1) or batches(self))
    for name in ("batch", "class_batch", "rows"):
        monkeypatch.setattr(RealData, name, getattr(RealData, name) if name == "rows" else None)
    options = {"networks": 3, "at_once": 2}
    pc.construct(data, None, "dm", network=NETWORK, privacy=BUDGET, method_options=options, **FEW)
    assert len(passes) == 3 + 1


def test_private_matching_pulls_means_together(data: Dataset) -> None:
    """With hardly any noise, the class means of the synthetic images approach those of the real ones."""
    options = {"networks": 2, "at_once": 2}
    losses = []
    for iterations in (1, 60):
        made = pc.construct(
            data,
            None,
            "dm",
            network=NETWORK,
            privacy=Budget(900.0, 1e-4),
            method_options=options,
            **FEW | {"iterations": iterations, "augment": False},
        )
        real = torch.stack([data.transform(data.train.images)[data.train.labels == c].mean(0) for c in range(10)])
        losses.append(float(torch.nn.functional.cosine_similarity(made.x.flatten(1), real.flatten(1)).mean()))
    assert losses[1] > losses[0] + 0.1


def test_what_is_learned_from_private_images_is_private(matched: pc.Coreset) -> None:
    synthetic = matched.as_data()
    options = {"steps": 2, "horizon": 4, "chains": 2, "batch_size": 8}
    made = pc.construct(synthetic, None, "bptt", network=NETWORK, method_options=options, **FEW)
    assert made.guarantee == matched.guarantee
    assert made.configuration["data"]["method"] == "dm"
    assert made.data_size == matched.data_size == 1300 and float(made.weights.sum()) == pytest.approx(1300)
    own = pc.train_experts(synthetic, NETWORK, 1, 1, batch_size=8, device="cpu")
    assert own.guarantee == matched.guarantee
    assert pc.construct(synthetic, own, "random", 1).guarantee == matched.guarantee
    with pytest.raises(pc.InputError, match="private already"):
        pc.construct(synthetic, None, "dm", network=NETWORK, privacy=BUDGET, **FEW)


def test_synthetic_images_become_the_same_inputs_again(matched: pc.Coreset) -> None:
    synthetic = matched.as_data()
    assert torch.allclose(synthetic.transform(synthetic.train.images), matched.x, atol=1e-5)


def test_going_on_adds_up_what_was_spent(data: Dataset, trained: Experts, matched: pc.Coreset) -> None:
    options = {"expert_epochs": 1, "max_start_epoch": 0, "steps": 2}
    start = pc.construct(data, trained, "cd", method_options=options, **FEW | {"ipc": 3})
    both = pc.construct(data, trained, "cd", method_options=options, initial=matched, **FEW | {"ipc": 3})
    assert both.guarantee is not None and start.guarantee is not None
    assert len(both.guarantee.releases) == 2 and both.guarantee.epsilon > BUDGET.epsilon
    same = pc.construct(data, trained, "cd", method_options=options, initial=start, **FEW | {"ipc": 3})
    assert same.guarantee == trained.guarantee


def test_without_a_budget_nothing_is_promised(matched: pc.Coreset, trained: Experts, data: Dataset) -> None:
    plain = pc.train_experts(data, NETWORK, 1, 1, device="cpu")
    options = {"expert_epochs": 1, "max_start_epoch": 0, "steps": 2}
    made = pc.construct(data, plain, "cd", method_options=options, initial=matched, **FEW | {"ipc": 3})
    assert plain.guarantee is None and made.guarantee is None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"method": "cd", "initialisation": "random"}, "starts from noise"),
        ({"method": "bptt"}, "reads the training data"),
        ({"method": "rkl"}, "reads the training data"),
        ({"method": "random"}, "selection of real images is not private"),
    ],
)
def test_private_experts_refuse_what_would_show_the_data(
    data: Dataset, trained: Experts, given: dict[str, str], why: str
) -> None:
    with pytest.raises(pc.InputError, match=why):
        pc.construct(data, trained, **given, **FEW)


@pytest.mark.parametrize("method", ["bptt", "gm", "dsa", "rkl", "kip", "cd"])
def test_a_budget_is_refused_by_methods_that_cannot_keep_it(data: Dataset, trained: Experts, method: str) -> None:
    with pytest.raises(pc.InputError, match="has no private form"):
        pc.construct(data, trained, method, privacy=BUDGET, **FEW)


def test_fitted_normalisation_is_refused(digits: Dataset, coreset: pc.Coreset, data: Dataset, trained: Experts) -> None:
    with pytest.raises(pc.InputError, match="publicly_normalised"):
        pc.train_experts(digits, NETWORK, 1, privacy=BUDGET, **TRAINING)
    with pytest.raises(pc.InputError, match="publicly_normalised"):
        pc.construct(digits, None, "dm", network=NETWORK, privacy=BUDGET, **FEW)
    with pytest.raises(pc.InputError, match="publicly_normalised"):
        pc.construct(digits, trained, "cd", **FEW)
    with pytest.raises(pc.InputError, match="without differential privacy"):
        pc.construct(data, trained, "cd", initial=coreset, **FEW)


def test_the_command_says_what_it_promises(bpc: Invoke) -> None:
    """As in docs/privacy.md: private experts, a private coreset, and one learned from it by any method."""
    budget = ("--epsilon", 8, "--delta", 1e-4, "--device", "cpu")
    trained = bpc("experts", "--count", 1, "--epochs", 1, "--batch-size", 400, "--network", NETWORK, *budget)
    assert trained.exit_code == 0, trained.stderr
    assert "differential privacy with epsilon = 8 and delta = 0.0001" in trained.stdout
    few = ("--iterations", 2, "--network", NETWORK, "--device", "cpu")
    made = bpc(
        "construct", "--method", "dm", "--set", "networks=2", "--ipc", 3, *few, *budget[:4], "--out", "p.safetensors"
    )
    assert made.exit_code == 0, made.stderr
    assert "1,300 training examples" in made.stdout
    small = ("--method", "bptt", "--set", "steps=2", "--set", "horizon=4", "--set", "burn_in=0", "--json")
    again = bpc("construct", "--data-from", "p.safetensors", "--ipc", 1, *few, *small, "--out", "q.safetensors")
    assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout)["guarantee"]["epsilon"] == 8
    twice = bpc("construct", "--method", "dm", *few, *budget[:4], "--out", "p.safetensors")
    assert twice.exit_code == 2 and "what both epsilons allow" in twice.stderr
    for method, why in (("bptt", "has no private form"), ("cd", "has no private form"), ("herding", "is not private")):
        refused = bpc("construct", "--method", method, *few, *budget[:4], "--out", "r.safetensors")
        assert refused.exit_code == 2 and why in refused.stderr
    sampled = ("--chains", 2, "--steps", 20, "--samples", 2, "--device", "cpu")
    judged = bpc("evaluate", "p.safetensors", *sampled)
    assert judged.exit_code == 0 and "control's figures are those of real images" in " ".join(judged.stdout.split())
    alone = bpc("evaluate", "p.safetensors", "--controls", 0, *sampled, "--json")
    assert "not_covered" not in json.loads(alone.stdout)
    unclear = bpc("construct", "--method", "dm", "--delta", 1e-4, *few, "--out", "r.safetensors")
    assert unclear.exit_code == 2 and "--epsilon" in unclear.stderr


class Chosen(SystemEntropy):
    """Has exactly these examples take part."""

    def __init__(self, *examples: int) -> None:
        super().__init__()
        self._examples = list(examples)

    def uniform(self, count: int, device: torch.device) -> Tensor:
        drawn = torch.ones(count, dtype=torch.float64)
        drawn[self._examples] = 0.0
        return drawn


def private_trainer(data: Dataset, entropy: SystemEntropy, augment: bool = False, norm: float = 1.0) -> PrivateTrainer:
    network = pc.build_network(NETWORK, data.shape, len(data.classes))
    promised = Guarantee(1.0, 1e-5, "none", len(data.train), (Release("steps", 1e-9, 0.5),))
    settings = ExpertSettings(batch_size=len(data.train) // 2, augment=augment)
    training = PrivateTraining(BUDGET, norm, promised)
    return PrivateTrainer(data, network, settings, HOST, PlainBackend(), training, entropy)


@pytest.mark.parametrize("seed", range(3))
def test_nobody_changes_how_others_are_augmented(data: Dataset, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an example changes the sum by more than its own clipped gradient, and tells that it took part."""
    monkeypatch.setattr(private, "examples_at_once", lambda *given: 4)
    others, gradients = (10, 20, 30, 40, 50, 60), plain.example_gradients

    def inputs(*examples: int) -> Tensor:
        """Of the others, in two steps."""
        seen: list[Tensor] = []
        spy = lambda network, theta, x, y: seen.append(x) or gradients(network, theta, x, y)  # noqa: E731
        monkeypatch.setattr(plain, "example_gradients", spy)
        trainer, stream = private_trainer(data, Chosen(*examples), augment=True), Randomness.for_purpose(seed, "test")
        for _ in range(2):
            trainer.gradient(trainer._network.initialise(0), stream)
        return torch.cat(seen).view(2, -1, *seen[0].shape[1:])[:, len(examples) - len(others) : len(examples)]

    assert torch.equal(inputs(3, *others), inputs(*others))


@pytest.mark.parametrize("examples", [(), (7,), (0, 5, 9, 30), range(9)])
def test_parts_are_of_one_size_and_their_filling_is_blank(
    data: Dataset, examples: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many take part says how many parts there are, and nothing else of what is computed."""
    monkeypatch.setattr(private, "examples_at_once", lambda *given: 4)
    trainer = private_trainer(data, Chosen(*examples))
    parts = list(trainer._parts(torch.tensor(list(examples), dtype=torch.int64)))
    assert [len(x) for x, _, _ in parts] == [4] * -(-len(examples) // 4)
    if parts:
        x, y, admitted = (torch.cat(each) for each in zip(*parts, strict=True))
        assert admitted.tolist() == [True] * len(examples) + [False] * (len(x) - len(examples))
        assert torch.equal(x[admitted], trainer._images[list(examples)]) and not bool(x[~admitted].any())
        assert torch.equal(y[admitted], trainer._labels[list(examples)]) and not bool(y[~admitted].any())


def test_a_step_is_the_clipped_sum_of_those_who_take_part(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts that do not divide their number, against each gradient alone; without noise."""
    monkeypatch.setattr(private, "examples_at_once", lambda *given: 3)
    monkeypatch.setattr(private, "noisy_sum", lambda total, *rest: total)
    examples, norm = [0, 4, 8, 15, 16, 23, 42, 1000], 3.8
    trainer = private_trainer(data, Chosen(*examples), norm=norm)
    network, theta = trainer._network, trainer._network.initialise(0)
    gradients = per_example_gradients(network, theta, trainer._images[examples], trainer._labels[examples]).double()
    norms = gradients.norm(dim=1)
    assert 0 < int((norms > norm).sum()) < len(examples)
    wanted = (gradients * (norm / norms).clamp_max(1.0)[:, None]).sum(0) / (0.5 * len(data.train))
    found = trainer.gradient(theta, Randomness.for_purpose(0, "test"))
    assert torch.allclose(found, wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))


def test_the_size_of_parts_is_for_a_memory_and_for_few_examples() -> None:
    small, large = pc.build_network("mlp:depth=1,width=8", (1, 8, 8), 10), pc.build_network("alexnet", (3, 32, 32), 10)
    sizes = [private.examples_at_once(small, expected) for expected in (0.5, 10, 100, 1024, 4096)]
    assert sizes == [1, 10, 32, 128, 256]
    assert private.examples_at_once(large, 4096) * large.size <= private.GRADIENT_NUMBERS


def test_rounding_adds_nothing_to_what_an_example_changes(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """One long vector before many short ones, one at a time: in single precision it would swallow them."""
    norm, others, totals = 2.0**25, 200, []
    few = replace(data, train=data.train.subset(torch.arange(1 + others)), transform=data.transform_source)

    monkeypatch.setattr(private, "examples_at_once", lambda *given: 1)
    monkeypatch.setattr(private, "noisy_sum", lambda total, *rest: totals.append(total) or total)
    for examples in (range(1 + others), range(1, 1 + others)):
        short = torch.zeros(private_trainer(few, Chosen())._network.size)
        short[0] = 1.0
        waiting = [-norm * short] * (0 in examples) + [short] * others
        one_by_one = lambda *given, each=iter(waiting): ExampleVectors.of(next(each)[None])  # noqa: E731
        monkeypatch.setattr(plain, "example_gradients", one_by_one)
        trainer = private_trainer(few, Chosen(*examples), norm=norm)
        trainer.gradient(trainer._network.initialise(0), Randomness.for_purpose(0, "test"))
    assert float((totals[0].double() - totals[1].double()).norm()) <= norm


def test_class_sums_change_by_at_most_one_with_an_example(data: Dataset) -> None:
    """Both in pixels and labels: whatever example is left out, and however many others there are."""
    network = pc.build_network(NETWORK, data.shape, 10)
    method, sums = PrivateMatching(1.0, networks=3), {}
    for left_out in (None, 0, 700):
        kept = torch.tensor([i for i in range(len(data.train)) if i != left_out])
        part = replace(data, train=data.train.subset(kept), transform=data.transform_source)
        about, _ = image_task(part, None, network, "dm", pc.methods.DistributionMatching())
        problem = about.problem(ConstructionSettings(), HOST, choose_backend(HOST))
        sums[left_out], _ = method.sums(network, problem, HOST)
    for left_out in (0, 700):
        change = float((sums[None] - sums[left_out]).norm())
        assert 1 - 1e-5 < change <= 1


class Mixing:
    """An augmentation in which every image holds something of another."""

    kinds = ("mix",)

    def draw(self, count: int, randomness: Randomness) -> Transformation:
        return lambda x: x + x.flip(0)

    def draw_steps(self, steps: int, count: int, randomness: Randomness) -> Transformation:
        return lambda x: x

    def draw_kind(self, kind: str, count: int, generator: torch.Generator) -> Transformation:
        return lambda x: x


def test_augmentation_of_ones_own_is_refused(data: Dataset) -> None:
    with pytest.raises(pc.InputError, match="never mixes"):
        pc.construct(data, None, "dm", network=NETWORK, privacy=BUDGET, augmentation=Mixing(), **FEW)
    with pytest.raises(pc.InputError, match="never mixes"):
        pc.train_experts(data, NETWORK, 1, privacy=BUDGET, augmentation=Mixing(), **TRAINING)


def test_a_budget_for_images_that_show_the_data_is_refused(data: Dataset) -> None:
    """It would protect these images, and not those that they were chosen from."""
    real = pc.construct(data, None, "random", 20, network=NETWORK).as_data()
    budget = Budget(8.0, 1e-3)
    with pytest.raises(pc.InputError, match="made without differential privacy"):
        pc.construct(real, None, "dm", network=NETWORK, privacy=budget, **FEW)
    with pytest.raises(pc.InputError, match="made without differential privacy"):
        pc.train_experts(real, NETWORK, 1, privacy=budget, **TRAINING)


def test_the_range_of_pixels_is_public_and_another_one_is_not() -> None:
    images, labels = torch.rand(20, 1, 8, 8), torch.arange(20) % 2
    assert pc.Dataset.from_tensors(images, labels).publicly_normalised().transform.public
    with pytest.raises(pc.InputError, match="from 0 to 1"):
        pc.Dataset.from_tensors(3 * images, labels).publicly_normalised()
