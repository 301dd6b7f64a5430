"""Copies single files out of a wheel, zip or tar archive, each checked against a pinned SHA-256.

    python3 unpack.py ARCHIVE OUT_DIR < MANIFEST

Each line of the manifest is `SHA256 DESTINATION MEMBER`. A member inside a tar that is itself inside the archive is
written `inner.tar.gz!member`. Called by assets.sh; needs the standard library only.

An archive is not trusted: only members the manifest names are read, they must be ordinary files, no more than
MAX_BYTES of each is read, and a destination may not leave OUT_DIR.
"""

import hashlib
import io
import sys
import tarfile
import zipfile
from pathlib import Path

MAX_BYTES = 1 << 30
CHUNK = 1 << 20


class Refused(Exception):
    """The archive does not hold what the manifest asks for."""


class Archive:
    """A wheel, zip or tar archive given by path or by stream."""

    def __init__(self, archive):
        self.zip = isinstance(archive, Path) and zipfile.is_zipfile(archive)
        if self.zip:
            self.bundle = zipfile.ZipFile(archive)
        else:
            self.bundle = tarfile.open(archive) if isinstance(archive, Path) else tarfile.open(fileobj=archive)

    def find(self, name):
        """The entry of an ordinary file."""
        try:
            found = self.bundle.getinfo(name) if self.zip else self.bundle.getmember(name)
        except KeyError:
            raise Refused(f"no file {name!r} in the archive") from None
        # A link in a zip is a file with a Unix mode of links, in the upper half of the attributes.
        if self.zip:
            ordinary = not found.is_dir() and (found.external_attr >> 16) & 0o170000 != 0o120000
        else:
            ordinary = found.isreg()
        if not ordinary:
            raise Refused(f"{name!r} is not an ordinary file")
        return found

    def place(self, member):
        """The offset of an entry. Solid archives are read in one pass only if members are taken in this order."""
        found = self.find(member.partition("!")[0])
        return found.header_offset if self.zip else found.offset

    def open(self, member):
        """A readable stream of one file."""
        outer, _, inner = member.partition("!")
        found = self.find(outer)
        stream = self.bundle.open(found) if self.zip else self.bundle.extractfile(found)
        if not inner:
            return stream
        content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise Refused(f"{outer!r} is larger than {MAX_BYTES} bytes")
        return Archive(io.BytesIO(content)).open(inner)


def inside(directory, name):
    """The path of `name` under `directory`, refused where it would be elsewhere."""
    directory = directory.resolve()
    path = (directory / name).resolve()
    if directory not in path.parents:
        raise Refused(f"destination {name!r} leaves the output directory")
    return path


def copy(stream, path, expected):
    """Copies a stream to `path`; the file exists afterwards only if its hash is the expected one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    with open(path, "wb") as out:
        while chunk := stream.read(CHUNK):
            size += len(chunk)
            if size > MAX_BYTES:
                break
            digest.update(chunk)
            out.write(chunk)
    if size > MAX_BYTES or digest.hexdigest() != expected:
        path.unlink()
        found = f"more than {MAX_BYTES} bytes" if size > MAX_BYTES else f"SHA-256 {digest.hexdigest()}"
        raise Refused(f"{path.name}: expected SHA-256 {expected}, found {found}")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    archive, out = Path(sys.argv[1]), Path(sys.argv[2])
    try:
        wanted = [line.strip().split(None, 2) for line in sys.stdin.read().split("\n") if line.strip()]
        bundle = Archive(archive)
        for expected, destination, member in sorted(wanted, key=lambda entry: bundle.place(entry[2])):
            copy(bundle.open(member), inside(out, destination), expected)
    except (Refused, OSError, EOFError, tarfile.TarError, zipfile.BadZipFile) as fault:
        sys.exit(f"{archive.name}: {fault}")


if __name__ == "__main__":
    main()
