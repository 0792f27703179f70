"""What the shim is compiled and linked with, for each release of torch: fetched, not installed.

A wheel of torch is some hundred megabytes; the shim needs its headers and two small libraries. They
are read out of the wheel by range requests on pip's index, into a cache that later runs use. There
they lie as pip would have laid them, so that what finds them on a user's machine finds them here:

    <cache>/torch-2.11.0/torch/{include,lib,version.py}
    <cache>/torch-2.11.0/nvidia ──► ../cuda-13/nvidia     libcudart and its headers
    <cache>/crt-13/                                       two headers that come with nvcc alone
"""

from __future__ import annotations

import html
import http.client
import io
import os
import re
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path

# For each CUDA: distribution and version prefix of the runtime, and of the headers that it includes
# and does not bring.
RUNTIME = {
    12: ("nvidia-cuda-runtime-cu12", "12.8."),
    13: ("nvidia-cuda-runtime", "13.0."),
}
CRT = {
    12: ("nvidia-cuda-nvcc-cu12", "12.8."),
    13: ("nvidia-cuda-crt", "13.0."),
}
TORCH_FILES = re.compile(
    r"torch/(include/(c10/|torch/headeronly/|torch/csrc/api/include/torch/version\.h$)"
    r"|lib/libc10(_cuda)?\.so$|version\.py$)"
)
CUDA_FILES = re.compile(r"nvidia/[^/]+/(include/(crt/.*|[^/]*)\.(h|hpp)|lib/libcudart\.so\.\d+)$")

# The index did not answer: nothing more is asked of it.
_gone = threading.Event()


class Unreachable(Exception):
    """The index did not answer at all."""


def minor(release: str) -> tuple[int, ...]:
    """(2, 11) of "2.11.0"."""
    return tuple(int(part) for part in release.split(".")[:2])


def cuda_of(release: str) -> int:
    """The CUDA that the wheels on PyPI were built with."""
    return 13 if minor(release) >= (2, 11) else 12


def cache_folder() -> Path:
    """Where everything lies that is fetched or built."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "girih/shim-tests"


def site(release: str) -> Path:
    """What would be site-packages: `torch` and `nvidia` are in it."""
    return cache_folder() / f"torch-{release}"


def crt_headers(release: str) -> Path:
    """The folder with `crt/host_defines.h`, from nvcc's package."""
    return next((cache_folder() / f"crt-{cuda_of(release)}").glob("nvidia/*/include"))


def fetch_release(release: str) -> None:
    """Makes sure that the files for `release` are in the cache, or raises `Unreachable`."""
    cuda = cuda_of(release)
    extract("torch", f"{release}.", TORCH_FILES, site(release))
    extract(*RUNTIME[cuda], CUDA_FILES, cache_folder() / f"cuda-{cuda}")
    extract(*CRT[cuda], CUDA_FILES, cache_folder() / f"crt-{cuda}")
    link = site(release) / "nvidia"
    if not link.is_symlink():
        link.symlink_to(f"../cuda-{cuda}/nvidia")


# One release at a time fetches what several need.
_extracting = {name: threading.Lock() for name, _ in (*RUNTIME.values(), *CRT.values())}


def extract(distribution: str, version: str, wanted: re.Pattern[str], folder: Path) -> None:
    """Puts the members of a wheel that `wanted` matches into `folder`, once. A mark is left there
    when all have come, so that an interrupted fetch is begun anew."""
    with _extracting.get(distribution) or threading.Lock():
        mark = folder / f".{distribution}-{version.rstrip('.')}.complete"
        if mark.exists():
            return
        remote = RemoteFile(wheel_url(distribution, version))
        archive = zipfile.ZipFile(io.BufferedReader(remote, 1 << 16))
        names = [name for name in archive.namelist() if wanted.match(name) and name[-1] != "/"]
        if not names:
            raise SystemExit(f"the wheel of {distribution} {version} lacks the files expected")
        for name in names:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            # Another process may fetch the same: each file appears under its name when it is whole.
            partial = target.with_name(f"{target.name}.{os.getpid()}")
            partial.write_bytes(archive.read(name))
            partial.replace(target)
        mark.touch()


class RemoteFile(io.RawIOBase):
    """A file behind a URL, read in blocks as zipfile seeks about in it."""

    BLOCK = 1 << 20

    def __init__(self, url: str) -> None:
        self.url = url
        self.position = 0
        self.blocks: dict[int, bytes] = {}
        _, headers = fetch(url, 0, 0)
        if "Content-Range" not in headers:
            raise SystemExit(f"{url}: the index does not answer range requests; set PIP_INDEX_URL")
        self.size = int(headers["Content-Range"].split("/")[1])

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = 0) -> int:
        self.position = offset + (0, self.position, self.size)[whence]
        return self.position

    def readinto(self, buffer) -> int:
        number, offset = divmod(self.position, self.BLOCK)
        if self.position >= self.size:
            return 0
        if number not in self.blocks:
            first = number * self.BLOCK
            last = min(self.size, first + self.BLOCK) - 1
            self.blocks[number], _ = fetch(self.url, first, last)
        data = self.blocks[number][offset : offset + len(buffer)]
        buffer[: len(data)] = data
        self.position += len(data)
        return len(data)


def wheel_url(distribution: str, version: str) -> str:
    """The newest wheel whose version begins with `version`, for Linux on x86-64."""
    page_url = f"{index_url()}/{distribution}/"
    page, _ = fetch(page_url)
    wheels = []
    links = re.findall(r'<a [^>]*?href="([^"#]*)[^>]*>\s*([^<]*?)\s*</a>', page.decode())
    for target, name in links:
        parts = name.split("-")
        if not name.endswith("x86_64.whl") or "manylinux" not in name:
            continue
        if not (parts[1] + ".").startswith(version):
            continue
        if parts[2] in ("cp312", "py3"):
            order = [int(number) for number in re.findall(r"\d+", parts[1])]
            wheels.append((order, urllib.parse.urljoin(page_url, html.unescape(target))))
    if not wheels:
        raise SystemExit(f"{page_url} has no wheel of version {version}* for Linux on x86-64")
    return max(wheels)[1]


def index_url() -> str:
    """The index that pip uses."""
    url = os.environ.get("PIP_INDEX_URL")
    if not url:
        asked = subprocess.run(
            [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        url = asked.stdout.strip()
    return (url or "https://pypi.org/simple").rstrip("/")


def fetch(url: str, first: int | None = None, last: int | None = None):
    """The bytes of a resource, all or from `first` to `last`, and its headers, in three tries."""
    request = urllib.request.Request(url)
    if first is not None:
        request.add_header("Range", f"bytes={first}-{last}")
    certificates = os.environ.get("PIP_CERT")
    context = ssl.create_default_context(cafile=certificates) if certificates else None
    for pause_s in (1, 3, 0):
        if _gone.is_set():
            raise Unreachable(f"{url}: the index has not answered before")
        try:
            with urllib.request.urlopen(request, timeout=60, context=context) as answer:
                return answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code != 429:
                raise SystemExit(f"{url}: {error}") from error
            failure: Exception = error
        except (OSError, http.client.HTTPException) as error:
            failure = error
        time.sleep(pause_s)
    _gone.set()
    raise Unreachable(f"{url}: {failure}")
