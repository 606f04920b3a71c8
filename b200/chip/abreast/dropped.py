"""Why CTAs do not run abreast."""


class NotAbreast(BaseException):
    """CTAs cannot run abreast, or not any more: they run one after the other. This is no Exception,
    so that nobody takes it for a fault of the kernel.
    """


class CtasDiffer(NotAbreast):
    """CTAs go different ways, or to places that differ in more than the CTA."""


class ReadAndWritten(NotAbreast):
    """An allocation, by its base, is both read and written, and nobody had foreseen it."""

    def __init__(self, base: int):
        super().__init__("an allocation is read and written")
        self.base = base
