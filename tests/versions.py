"""Tests of what only some versions of a package have are marked with the name that they need."""

from __future__ import annotations

import importlib.metadata

import pytest

from b200.host import takeover
from b200.host.takeover import Feature


def needs(name: str) -> pytest.MarkDecorator:
    """Skips a test where "module:Name.attribute" is not installed. Not for what is missing by our
    own fault: a name of another package only.
    """
    return pytest.mark.skipif(not takeover.is_there(name), reason=f"no {name} is installed")


def needs_feature(feature: Feature) -> pytest.MarkDecorator:
    """Skips a test of what install() says that it refuses with the versions installed."""
    reason = takeover.missing(feature)
    return pytest.mark.skipif(bool(reason), reason=reason or "-")


def since(package: str, version: str, why: str) -> pytest.MarkDecorator:
    """Skips a test where an older version of a package is installed, whatever names it has."""
    reason = f"{package} {importlib.metadata.version(package)}: {why}"
    return pytest.mark.skipif(is_older(package, version), reason=reason)


def is_older(package: str, version: str) -> bool:
    """Whether the package that is installed is older than a version of two numbers."""
    installed = importlib.metadata.version(package)
    return [int(n) for n in installed.split(".")[:2]] < [int(n) for n in version.split(".")]
