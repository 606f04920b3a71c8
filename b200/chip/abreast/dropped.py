"""Why CTAs do not run abreast."""


class NotAbreast(BaseException):
    """CTAs cannot run abreast, or not any more: they run one after the other. This is no Exception,
    so that nobody takes it for a fault of the kernel.
    """
