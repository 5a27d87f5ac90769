"""How well our corruptions agree with the generator that made CIFAR-10-C.

    python benchmarks/corruption_agreement.py PATH/TO/make_cifar_c.py --data-dir DIR

PATH is the published generator (hendrycks/robustness, ImageNet-C/create_c/make_cifar_c.py) in a checkout of its
own, beside its frost pictures; this script contains none of it. Beside this library it needs
opencv-python-headless, scikit-image and imagecorruptions. ImageMagick is not needed: the generator's motion blur is
answered by the one of imagecorruptions.

Corruptions without chance are compared pixel by pixel. The others are compared by what they do on average: the mean
and the deviation of (corrupted - clean) within an image, averaged over images, and the difference in standard
errors (z), taken image by image.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from pseudocoresets.data import load_dataset
from pseudocoresets.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt, moved

WITHOUT_CHANCE = (
    "gaussian_blur",
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "saturate",
    "pixelate",
    "jpeg_compression",
)


def published_functions(path: Path) -> dict[str, Callable[..., Any]]:
    """The generator's functions, run with today's libraries in place of those it was written for."""
    import cv2
    import scipy.ndimage
    from imagecorruptions.corruptions import _motion_blur
    from skimage import filters

    class Wand:
        """Stands for ImageMagick's image: decodes, blurs by another implementation, encodes."""

        def __init__(self, blob: bytes) -> None:
            self.pixels = cv2.imdecode(np.frombuffer(blob, np.uint8), cv2.IMREAD_UNCHANGED)

        def motion_blur(self, radius: float, sigma: float, angle: float) -> None:
            self.pixels = np.rint(_motion_blur(self.pixels.astype(np.float32), radius, sigma, angle)).astype(np.uint8)

        def make_blob(self) -> bytes:
            encoded: bytes = cv2.imencode(".png", self.pixels)[1].tobytes()
            return encoded

    stand_ins = ("torchvision", "torchvision.datasets", "torchvision.transforms", "wand", "wand.image", "wand.api")
    for name in (*stand_ins, "wand.color", "scipy.ndimage.interpolation"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["wand.image"].Image = Wand  # type: ignore[attr-defined]
    blur = types.SimpleNamespace(MagickMotionBlurImage=types.SimpleNamespace())
    vars(sys.modules["wand.api"]).update(library=blur)
    sys.modules["scipy.ndimage.interpolation"].map_coordinates = scipy.ndimage.map_coordinates  # type: ignore[attr-defined]
    np.float_, np.fromstring = np.float64, np.frombuffer  # type: ignore[attr-defined,assignment,misc]
    functions: dict[str, Any] = {}
    exec(compile(path.read_text().split("import collections")[0], str(path), "exec"), functions)

    def gaussian(image: Any, sigma: float, multichannel: bool = False, **options: Any) -> Any:
        return filters.gaussian(image, sigma, channel_axis=-1 if multichannel else None, **options)

    functions |= {"gaussian": gaussian, "MotionImage": Wand}
    return functions


def published(function: Callable[..., Any], images: np.ndarray, severity: int) -> np.ndarray:
    """(n, height, width, 3) in uint8."""
    return np.stack([np.uint8(np.nan_to_num(np.asarray(function(Image.fromarray(one), severity)))) for one in images])


def moments(corrupted: np.ndarray, clean: np.ndarray) -> dict[str, np.ndarray]:
    """Mean and deviation of (corrupted - clean) within each image."""
    change = corrupted.astype(np.float64) - clean
    return {"mean": change.mean((1, 2, 3)), "deviation": change.std((1, 2, 3))}


def compare(ours: np.ndarray, theirs: np.ndarray, clean: np.ndarray, chance: bool) -> dict[str, float]:
    if not chance:
        distance = np.abs(ours.astype(int) - theirs)
        return {
            "max": int(distance.max()),
            "mean": round(float(distance.mean()), 5),
            "share_equal": round(float((distance == 0).mean()), 5),
            "effect": round(float(np.abs(theirs.astype(int) - clean).mean()), 3),
        }
    record = {}
    their_moments = moments(theirs, clean)
    for name, mine in moments(ours, clean).items():
        other = their_moments[name]
        difference = mine - other
        z = difference.mean() / max(difference.std(ddof=1) / math.sqrt(len(difference)), 1e-12)
        record[f"{name}_ours"] = round(float(mine.mean()), 3)
        record[f"{name}_theirs"] = round(float(other.mean()), 3)
        record[f"{name}_z"] = round(float(z), 2)
    return record


def motion_blur_at_fixed_angles(clean: np.ndarray) -> dict[str, float]:
    """Our motion blur against that of imagecorruptions, at the same angles; theirs is rounded as ours is."""
    from imagecorruptions.corruptions import _motion_blur

    angles = np.linspace(-135, 45, len(clean))
    channels_first = clean.transpose(0, 3, 1, 2).astype(np.float32) / 255
    ours = np.rint(moved(channels_first, 9, 2.5, angles) * 255).transpose(0, 2, 3, 1)
    pairs = zip(clean.astype(np.float32), angles, strict=True)
    theirs = np.stack([np.rint(_motion_blur(one, 9, 2.5, angle)) for one, angle in pairs])
    difference = np.abs(ours - theirs)
    return {"max": int(difference.max()), "mean": round(float(difference.mean()), 5)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("generator", type=Path, help="make_cifar_c.py in a checkout")
    parser.add_argument("--dataset", default="cifar10", help="any with colour images of 32 x 32")
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "corruption_agreement.json")
    options = parser.parse_args()
    images = load_dataset(options.dataset, options.data_dir).test.images[: options.images]
    clean = images.permute(0, 2, 3, 1).numpy()
    out = options.out.resolve()
    functions = published_functions(options.generator.resolve())
    os.chdir(options.generator.parent)
    np.random.seed(0)
    random.seed(0)
    record: dict[str, Any] = {"dataset": options.dataset, "images": len(images)}
    record["motion_blur_fixed_angles"] = motion_blur_at_fixed_angles(clean)
    for name in CORRUPTIONS:
        record[name] = {}
        for severity in SEVERITIES:
            ours = corrupt(images, name, severity).permute(0, 2, 3, 1).numpy()
            theirs = published(functions[name], clean, severity)
            record[name][str(severity)] = compare(ours, theirs, clean, chance=name not in WITHOUT_CHANCE)
            print(name, severity, record[name][str(severity)], flush=True)
    versions = {"torch": torch.__version__, "numpy": np.__version__}
    out.write_text(json.dumps(record | {"versions": versions}, indent=1) + "\n")


if __name__ == "__main__":
    main()
