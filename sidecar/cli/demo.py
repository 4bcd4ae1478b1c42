"""demo"""


def demo() -> int:
    return 0
