"""The names of the classes, in the order of the labels."""

import string

DIGITS = tuple(string.digits)
DIGITS_AND_LETTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
CLOTHES = "t-shirt,trouser,pullover,dress,coat,sandal,shirt,sneaker,bag,ankle boot"
FASHION = tuple(CLOTHES.split(","))
CIFAR10 = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())  # noqa: SIM905
CIFAR100 = tuple(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
    camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
    cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
    lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm
    """.split()  # noqa: SIM905
)
