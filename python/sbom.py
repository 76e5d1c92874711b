"""The list of what is compiled into the programs of a wheel, as CycloneDX. auditwheel lists the shared libraries that it adds, but not these."""
import base64
import gzip
import hashlib
import io
import json
import re
import subprocess
import zipfile
from pathlib import Path
from urllib.parse import quote


def version_of(package, sysroot=None):
    """The version of a Debian package, installed or extracted into a folder; None elsewhere."""
    if sysroot:
        try:
            with gzip.open(sysroot / "usr/share/doc" / package / "changelog.Debian.gz", "rt", encoding="utf-8") as file:
                return re.match(r"\S+ \(([^)]+)\)", file.readline())[1]
        except OSError:
            return None
    try:
        done = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def component(name, package, licence, sysroot):
    out = {"type": "library", "bom-ref": name, "name": name, "licenses": [{"license": {"name": f"see {licence}"}}]}
    version = version_of(package, sysroot)
    if version:
        out["version"] = version
        out["purl"] = f"pkg:deb/debian/{package}@{quote(version)}"
    return out


def contents(archive, sysroot):
    """Returns the document for the names in a wheel: its programs and libraries with their checksums, and the libraries that have a licence in it."""
    names = sorted(name for name in archive.namelist() if not name.endswith("/"))
    (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
    about = dict(re.findall(r"^(Name|Version): (.*)$", archive.read(metadata).decode(), re.M))
    components = []
    for name in names:
        if re.match(r"shardlens/bin/[^/]+$|shardlens[\w.]*\.libs/", name):
            components.append({"type": "application" if "/bin/" in name else "library", "bom-ref": name, "name": name,
                               "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(archive.read(name)).hexdigest()}]})
    for name in names:
        inside = re.match(r"shardlens/licenses/([^/]+)\.txt$", name)
        if inside:
            library = inside.group(1)
            package = next((p for p in (f"lib{library}-dev", f"{library}-dev") if version_of(p, sysroot)), f"lib{library}-dev")
            components.append(component(library, package, name, sysroot))
    return {"bomFormat": "CycloneDX", "specVersion": "1.4", "version": 1,
            "metadata": {"component": {"type": "library", "bom-ref": "wheel", "name": about["Name"], "version": about["Version"]}},
            "components": components, "dependencies": [{"ref": "wheel", "dependsOn": [c["bom-ref"] for c in components]}]}


def add(wheel, sysroot=None):
    """Adds sboms/shardlens.cdx.json to a wheel's metadata, and its row to RECORD. Other members stay as they are."""
    wheel = Path(wheel)
    made = io.BytesIO()
    with zipfile.ZipFile(wheel) as archive, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as out:
        text = (json.dumps(contents(archive, sysroot), indent=1) + "\n").encode()
        (record,) = [info for info in archive.infolist() if info.filename.endswith(".dist-info/RECORD")]
        name = record.filename.removesuffix("RECORD") + "sboms/shardlens.cdx.json"
        digest = base64.urlsafe_b64encode(hashlib.sha256(text).digest()).decode().rstrip("=")
        rows = archive.read(record).decode().rstrip("\n") + f"\n{name},sha256={digest},{len(text)}\n"
        for info in archive.infolist():
            if info is not record:
                out.writestr(info, archive.read(info))
        for path, content in ((name, text), (record.filename, rows.encode())):
            info = zipfile.ZipInfo(path, record.date_time)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            out.writestr(info, content)
    wheel.write_bytes(made.getvalue())
