"""The version of this package."""

import importlib.metadata

try:
    VERSION = importlib.metadata.version("girih")
except importlib.metadata.PackageNotFoundError:  # a source folder on the path
    VERSION = "0"
