"""The audit as a whole: what leaks is found, what does not is not, and the command says so."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from small import NETWORK, Invoke

import pseudocoresets as pc
from pseudocoresets._report.privacy import write_audit_page
from pseudocoresets.backends import choose_backend
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.construction.tasks import real_coreset
from pseudocoresets.core.errors import FileFormatError, InputError
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.dp import Guarantee, Release
from pseudocoresets.methods.condensation.private_matching import PrivateMatching
from pseudocoresets.models.networks import build_network
from pseudocoresets.privacy.origin import training_data
from pseudocoresets.privacy.recipe import Recipe, Tools
from pseudocoresets.privacy.recovery import recovery, start_images
from pseudocoresets.privacy.report import ALL_DATA, CORESET, NOT_COVERED, RANDOM
from pseudocoresets.sources.experts import Experts

QUICK: dict[str, Any] = {"chains": 2, "steps": 40, "samples": 5, "device": "cpu"} | {
    "preset": pc.Preset(experts={"epochs": 1, "batch_size": 64})
}
FEW_STEPS = ("--chains", 2, "--sampling-steps", 40, "--samples", 5, "--device", "cpu")


def made(data: pc.Dataset, initialisation: str, method: str = "bptt", ipc: int = 2) -> pc.Coreset:
    """Where a construction of ``method`` starts, as if it had learned nothing."""
    settings = ConstructionSettings(ipc=ipc, initialisation=initialisation)
    recorded = {"settings": asdict(settings), "method": {}}
    spec = build_network(NETWORK, data.shape, len(data.classes)).spec
    return real_coreset(data, settings, spec, method, recorded)


@pytest.fixture(scope="module")
def meaningless() -> pc.Dataset:
    """Digits with random labels: nothing about held-out labels can be learned, only those of the training data."""
    digits, generator = pc.load_dataset("digits"), generator_for(0, "random labels")
    labels = torch.randint(0, 10, (400,), generator=generator)
    images, held_out = digits.train.images[:200], digits.train.images[200:400]
    return pc.Dataset.from_tensors(images, labels[:200], test=(held_out, labels[200:]), name="meaningless")


@pytest.fixture(scope="module")
def by_heart(meaningless: pc.Dataset) -> Experts:
    """A network that was trained until it knows its data."""
    return pc.train_experts(meaningless, NETWORK, 1, 60, batch_size=20, learning_rate=0.1, augment=False, device="cpu")


def test_a_network_that_knows_its_data_by_heart_is_found_and_noise_is_not(
    meaningless: pc.Dataset, by_heart: Experts
) -> None:
    report = pc.audit(made(meaningless, "noise"), meaningless, experts=by_heart, **QUICK)
    overfitted, own = report.membership[ALL_DATA].threshold, report.membership[CORESET].threshold
    assert (own.members, own.others) == (200, 200)
    # Of random labels the network guesses one in ten right where it has not seen them: AUC is at least 0.9 if all
    # training images are surer than the nine in ten that are guessed wrong.
    assert overfitted.auc.low > 0.9
    # Noise knows nothing of the data: members and others are alike, and AUC has deviation sqrt((m + n + 1) / (12 m n)).
    assert own.auc.value == pytest.approx(0.5, abs=4 * (401 / (12 * 200 * 200)) ** 0.5)
    words = " ".join(report.findings())
    assert f"trained on all data gives {overfitted.auc.value:.3f}" in words
    assert "started from noise" in words and "Only differential privacy is a guarantee" in words


def test_shadows_make_the_attack_on_such_a_network_stronger(meaningless: pc.Dataset, by_heart: Experts) -> None:
    """Which image was in which half is known to the attack; the least mistake there would leave a coin."""
    report = pc.audit(made(meaningless, "random", "random"), meaningless, experts=by_heart, shadows=6, **QUICK)
    attacks = report.membership[ALL_DATA].attacks()
    assert attacks["LiRA"].auc.low > 0.9 and attacks["LiRA, each shadow"].auc.low > 0.9
    assert attacks["LiRA"].at(0.01).value > attacks["loss threshold"].at(0.01).value
    assert report.about["shadows"] == 6 and attacks["LiRA, each shadow"].members == 6 * 200


def test_real_images_are_near_and_recognised(digits: pc.Dataset) -> None:
    report = pc.audit(made(digits, "random"), digits, images=200, **QUICK)
    for space in ("pixels", "features"):
        own = report.neighbours[space][CORESET]
        assert float(own.points.distances.max()) < 1e-5
        assert own.from_training.value == 1.0 and own.p_value < 1e-6
    found = report.recovery[CORESET]
    assert not isinstance(found, str)
    torch.testing.assert_close(found.own, torch.ones(20), atol=1e-5, rtol=0)
    assert found.recognised.value == 1.0 and found.chance < 0.01
    words = report.findings()
    assert words[0].startswith("20 of 20 points can be traced to the real image")
    assert words[1].startswith("In pixels, the points are nearer to training images")
    document = report.as_json()
    assert [row["of"] for row in document["membership"]] == [CORESET, RANDOM, ALL_DATA]
    assert report.picture().width > 200 and "<table>" in report._repr_html_()


def test_every_image_of_a_mosaic_is_compared_with_its_own_start(digits: pc.Dataset) -> None:
    """Stored at half the side, images are no copies any more, but each is more like its start than like others are."""
    settings = ConstructionSettings(ipc=1, formation=2)
    recorded = {"settings": asdict(settings), "method": {}}
    start = real_coreset(digits, settings, made(digits, "random").network, "bptt", recorded)
    report = pc.audit(start, digits, images=50, **QUICK)
    found = report.recovery[CORESET]
    assert not isinstance(found, str)
    assert len(found.own) == report.about["points"] == 40
    # Of starts in another order, 36 or more of 40 coins would have to fall on one side: one in ten million.
    assert int((found.own > found.typical).sum()) >= 36 and found.recognised.low > found.chance


def test_correlations_are_those_of_brute_force(digits: pc.Dataset) -> None:
    start = made(digits, "random", ipc=1)
    noise = torch.randn(start.x.shape, generator=generator_for(0, "moved"))
    moved, starts = replace(start, x=start.x + noise), start_images(start, digits)
    assert isinstance(starts, torch.Tensor)
    found = recovery(moved, digits, starts)
    pixels, real = moved.to_pixels().flatten(1), digits.train.images.float().flatten(1)
    for place, label in enumerate(start.hard_labels.tolist()):
        members = (digits.train.labels == label).nonzero().flatten()
        all_of_them = torch.corrcoef(torch.cat([pixels[place : place + 1], real[members]]))[0, 1:]
        others = all_of_them[members != starts[place]]
        assert float(found.own[place]) == pytest.approx(float(all_of_them[members == starts[place]]), abs=1e-5)
        assert float(found.typical[place]) == pytest.approx(float(others.mean()), abs=1e-5)
        assert float(found.closest[place]) == pytest.approx(float(others.max()), abs=1e-5)


def test_a_construction_is_recognised_from_its_record(coreset: pc.Coreset, digits: pc.Dataset) -> None:
    """A coreset that was learned: its record leads to the images that it started from, and to itself."""
    recipe, starts = Recipe.of(coreset), start_images(coreset, digits)
    assert isinstance(starts, torch.Tensor)
    assert torch.equal(digits.train.labels[starts], coreset.hard_labels)
    assert recipe.needs_experts and [step.method for step in recipe.steps] == ["cd"]
    assert recipe.steps[0].settings.iterations == 60


def test_a_recipe_of_several_constructions_makes_the_same_again(digits: pc.Dataset) -> None:
    options: dict[str, Any] = {"iterations": 2, "device": "cpu", "network": NETWORK}
    first = pc.construct(digits, method="dm", method_options={"batch_size": 16}, **options)
    second = pc.construct(digits, method="dm", method_options={"batch_size": 8}, initial=first, **options)
    recipe = Recipe.of(second)
    assert [step.options["batch_size"] for step in recipe.steps] == [16, 8] and not recipe.needs_experts
    network = build_network(NETWORK, digits.shape, 10)
    again = recipe.make(digits, None, Tools(network, torch.device("cpu"), choose_backend(torch.device("cpu"))))
    assert torch.equal(again.x, second.x)


def test_a_way_of_ones_own_makes_the_shadows(digits: pc.Dataset, experts: Experts) -> None:
    """Also where the record of the coreset does not say how it was made."""
    given: list[int] = []

    def make(data: pc.Dataset) -> pc.Coreset:
        given.append(len(data.train))
        return made(data, "random", ipc=1)

    unknown = replace(made(digits, "random"), configuration={})
    with pytest.raises(InputError, match="does not say all of how the coreset was made"):
        pc.audit(unknown, digits, experts=experts, shadows=6, **QUICK)
    report = pc.audit(unknown, digits, experts=experts, shadows=6, make=make, images=50, **QUICK)
    assert sum(given) == 3 * 1797 and report.membership[CORESET].lira is not None
    assert report.recovery[CORESET] == "The file does not say what the construction started from."


def test_shadows_of_a_private_coreset_read_their_data_with_the_same_noise(digits: pc.Dataset) -> None:
    """No accountant is asked again: the noise is in the record."""
    settings = {"iterations": 5, "network": NETWORK, "device": "cpu", "initialisation": "noise"}
    method = PrivateMatching(noise_multiplier=3.0, networks=2)
    private = pc.construct(digits.publicly_normalised(), method=method, ipc=1, **settings)
    promised = Guarantee(1.0, 1e-4, "a test", len(digits.train), (Release("class sums", 3.0),))
    private = replace(private, guarantee=promised)
    (step,) = Recipe.of(private).steps
    assert step.gradient() == method and step.is_private
    report = pc.audit(private, digits, shadows=6, images=50, **QUICK)
    assert report.membership[CORESET].lira is not None
    assert report.findings()[-2:] == [str(promised), NOT_COVERED]
    unknown = replace(private, configuration={**private.configuration, "method": {}})
    with pytest.raises(InputError, match="does not say how this private coreset was made"):
        pc.audit(unknown, digits, shadows=6, **QUICK)


def test_what_was_learned_from_the_images_of_a_private_coreset_is_made_again_in_the_same_way(
    digits: pc.Dataset,
) -> None:
    """Without noise, so that it can be compared: the private images first, then those learned from them."""
    settings = {"iterations": 3, "network": NETWORK, "device": "cpu"}
    data, method = digits.publicly_normalised(), PrivateMatching(noise_multiplier=0.0, networks=2)
    promised = Guarantee(1.0, 1e-4, "a test", len(digits.train), (Release("class sums", 1.0),))
    private = replace(pc.construct(data, method=method, ipc=4, initialisation="noise", **settings), guarantee=promised)
    small = pc.construct(private.as_data(), method="gm", ipc=1, initial=None, **settings)
    recipe = Recipe.of(small)
    assert recipe.is_private and not recipe.needs_experts and recipe.steps[0].made_from is not None
    network, cpu = build_network(NETWORK, digits.shape, 10), torch.device("cpu")
    again = recipe.make(data, None, Tools(network, cpu, choose_backend(cpu)))
    assert torch.equal(again.x, small.x) and again.data_size == small.data_size == 1300
    assert start_images(small, data) == (
        "The construction started from synthetic images, so there is no real start image to recognise."
    )


def test_data_that_the_coreset_was_not_made_from_are_refused(digits: pc.Dataset) -> None:
    held_out = digits.holding_out()
    found = training_data(made(held_out, "random"), digits)
    assert found.fingerprint == held_out.fingerprint and torch.equal(found.test.images, digits.test.images)
    with pytest.raises(InputError, match="other ones than the 1,300 training images of 'digits'"):
        pc.audit(made(digits.holding_out(0.1, seed=5), "random"), digits)


def test_an_attack_on_the_method_with_shadows_as_typed(
    bpc: Invoke, tmp_path: Path, digits: pc.Dataset, experts_folder: Path
) -> None:
    """Six shadows of a coreset of real images; a second call finds them done, and the page says what was found."""
    made(digits, "random", "random").save("c.safetensors")
    words = ["privacy", "audit", "c.safetensors", "--shadows", 6, "--images", 100, "--experts"]
    arguments = (*words, experts_folder, *FEW_STEPS)
    result = bpc(*arguments, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    attacks = document["membership"][0]["attacks"]
    assert [attack["attack"] for attack in attacks] == ["loss threshold", "LiRA", "LiRA, each shadow"]
    assert attacks[-1]["members"] + attacks[-1]["others"] == 6 * 200
    folder = tmp_path / "c.privacy"
    written = {path: path.stat().st_mtime_ns for path in (folder / "shadows").iterdir()}
    every = [f"shadow-000{number}" for number in range(6) for _ in range(3)]
    assert sorted(path.name[:11] for path in written) == every
    with Image.open(folder / "neighbours.png") as picture:
        assert picture.format == "PNG"
    page = (folder / "audit.html").read_text()
    assert "can be traced to the real image" in page and "http" not in page.replace("http-equiv", "")

    result = bpc(*arguments)
    assert result.exit_code == 0 and "Who was in the training data?" in result.stdout
    assert {path: path.stat().st_mtime_ns for path in (folder / "shadows").iterdir()} == written
    (folder / "audit.json").write_text("{}")
    with pytest.raises(FileFormatError, match="is not what an audit wrote"):
        write_audit_page(folder)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--shadows", 0), "at least 6 shadows"),
        (("--shadows", 6), "give those that it was made with (--experts)"),
        (("--protocol", "expert"), "by the protocol cold or point"),
        (("--images", 3), "At least ten images"),
        (("--sampler", "langvin"), "Did you mean 'langevin'?"),
        (("--dataset", "mnist"), "choose the data set that it was made from"),
        (("--dataset", "digit"), "Did you mean 'digits'?"),
        (("--experts", "nowhere"), "There are no experts in 'nowhere'"),
    ],
)
def test_bad_input_is_one_sentence(
    bpc: Invoke, tmp_path: Path, coreset_file: Path, arguments: tuple[Any, ...], sentence: str
) -> None:
    result = bpc("privacy", "audit", coreset_file, "--out", "a", *FEW_STEPS, *arguments)
    assert result.exit_code == 2 and result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ") and sentence in line
    assert list(tmp_path.iterdir()) == []
