"""All datasets: one table."""

from dataclasses import replace
from functools import partial

from outvote.data.cifar import CIFAR10_ENTRY, CIFAR100_ENTRY
from outvote.data.dataset_entry import DatasetEntry, Form, has_all
from outvote.data.femnist import SUBSET, has_leaf, read_leaf, read_subset
from outvote.data.flights import FLIGHTS_ENTRY
from outvote.data.image_folder import SIZE, has_images, read_image_folder
from outvote.data.kjv import KJV_ENTRY
from outvote.data.mnist import FASHION_ENTRY, MNIST_ENTRY, SMALL_ENTRY

FEMNIST_ENTRY = DatasetEntry(
    name="femnist",
    doc="handwritten digits and letters with their writers, 62 classes",
    shape=(28, 28, 1),
    num_classes=62,
    # The paper's code takes LEAF's pixels as they are.
    mean=(0.0,),
    std=(1.0,),
    pixels="0 is black ink, 255 is white paper",
    checks="sha256 of the subset; LEAF's JSON: its shapes and ranges, as it has no one original",
    forms=(
        Form(
            doc="LEAF's JSON (train/*.json and test/*.json, or all_data*.json)",
            is_there=has_leaf,
            read=read_leaf,
            options=("split_seed",),
        ),
        Form(doc=f"a subset of LEAF ({SUBSET})", is_there=has_all(SUBSET), read=read_subset),
    ),
    advice="run data/femnist/preprocess.sh of LEAF (github.com/TalwalkarLab/leaf) and copy its "
    "JSON there",
)
IMAGENET12_ENTRY = DatasetEntry(
    name="imagenet12",
    doc="12 classes of ImageNet, or any other folder of images by class",
    shape=(SIZE, SIZE, 3),
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    pixels="0 is dark, 255 is bright; red, green, blue",
    checks="every image is decoded; there is no one original",
    forms=(
        Form(
            doc="images (train/<class>/* and val/<class>/*)",
            is_there=has_images,
            read=read_image_folder,
            options=("size",),
        ),
    ),
    advice="copy or link your images there; ImageNet may not be passed on",
)
TINY_IMAGENET12_ENTRY = replace(
    IMAGENET12_ENTRY,
    name="tiny-imagenet12",
    doc="12 classes of Tiny-ImageNet, a small stand-in for imagenet12",
    shape=(64, 64, 3),
    forms=(replace(IMAGENET12_ENTRY.forms[0], read=partial(read_image_folder, size=64)),),
    advice="copy or link 12 classes of Tiny-ImageNet there",
)
MNIST_LIKE = (SMALL_ENTRY, FASHION_ENTRY, MNIST_ENTRY)
CIFAR = (CIFAR10_ENTRY, CIFAR100_ENTRY)
OTHERS = (FEMNIST_ENTRY, IMAGENET12_ENTRY, TINY_IMAGENET12_ENTRY, FLIGHTS_ENTRY, KJV_ENTRY)
DATASETS = {entry.name: entry for entry in (*MNIST_LIKE, *CIFAR, *OTHERS)}
"""The datasets that outvote can read, by name."""
