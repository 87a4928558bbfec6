"""wheels.py - the part of `mandor wheels add` and `import` that fetches wheels and looks into them.

mandor carries this file in itself and runs it with the python3 in PATH: one JSON request on standard input, one JSON answer on
standard output, talk for people on standard error.  It writes nothing but what pip fetches into the directory that the request
names; the store is mandor's own business (store_edit.c).

    {"do": "fetch", …}     pip, made to see the target's environment instead of this machine's, fetches wheels into "into"
    {"do": "inspect", …}   every byte of each wheel is looked at; answers what the lock file says of it, or why it is refused

HTTP, TLS, proxies, credentials, indexes (PEP 503, 691), versions (PEP 440), the choice of versions that fit together: all of that is pip's.
Requirements and markers (PEP 508), names and tags (PEP 425, 427, 783) are those of `packaging`, which pip brings along.
"""
import base64
import csv
import email.parser
import hashlib
import html
import io
import json
import os
import re
import signal
import stat
import struct
import sys
import urllib.parse
import urllib.request
import zipfile
import zlib

try:
    from packaging import markers, requirements, specifiers, tags, utils, version
except ImportError:
    try:
        from pip._vendor.packaging import markers, requirements, specifiers, tags, utils, version
    except ImportError:
        print(json.dumps({"refused": ["the python3 in PATH has neither pip nor the package 'packaging'; install python3-pip"]}))
        sys.exit(0)

UNPACKED_MAX = 1 << 30  # bytes; more would not fit into the interpreter's memory
SUSPICIOUS_SIZE, SUSPICIOUS_RATIO = 64 << 20, 100  # unpacked bytes; times the size of the file
MEMBERS_MAX = 100_000
METADATA_MAX = 8 << 20  # bytes
UNICODE_PATH = 0x7075  # extra field of a zip
HASHES = ("sha256", "sha384", "sha512")
UNSIGNED = ("RECORD", "RECORD.jws", "RECORD.p7s")  # what RECORD cannot hold the hash of
NOT_IMPORTED = {"tests", "test", "testing", "docs", "doc", "examples", "example", "benchmarks", "scripts", "build"}


class Refused(Exception):
    """A wheel, or a request, with the reason."""


# ---- the target -------------------------------------------------------------------------------------------------------------


class Target:
    """What the pinned Pyodide is, for markers and tags."""

    def __init__(self, target):
        self.python, self.abi, self.platform = target["python"], target["abi"], target["platform"]
        self.full_version = target["full_version"]
        pair = tuple(int(part) for part in self.python.split("."))
        interpreter = "cp" + "".join(self.python.split("."))
        self.tags = set(tags.cpython_tags(pair, abis=[self.abi], platforms=[self.platform]))
        self.tags.update(tags.compatible_tags(pair, interpreter=interpreter, platforms=[self.platform]))

    def environment(self):
        """As packaging.markers.default_environment() answers inside Pyodide."""
        return {
            "implementation_name": "cpython", "implementation_version": self.full_version, "os_name": "posix",
            "platform_machine": "wasm32", "platform_release": "5.0.3", "platform_system": "Emscripten", "platform_version": "#1",
            "python_full_version": self.full_version, "platform_python_implementation": "CPython",
            "python_version": self.python, "sys_platform": "emscripten",
        }

    def pip_options(self):
        return ["--only-binary=:all:", "--python-version", self.full_version, "--implementation", "cp", "--abi", self.abi,
                "--platform", self.platform]

    def why_not(self, wheel_tags):
        """Why none of these tags fits."""
        platforms = sorted({tag.platform for tag in wheel_tags})
        pythons = sorted({f"{tag.interpreter}-{tag.abi}" for tag in wheel_tags})
        if self.platform in platforms or "any" in platforms:
            return f"made for {', '.join(pythons)}, this Pyodide is {self.abi} (Python {self.python})"
        if any(re.match(r"(pyodide|emscripten|pyemscripten)_", platform) for platform in platforms):
            return f"made for another WebAssembly ABI, '{', '.join(platforms)}': this Pyodide wants '{self.platform}'"
        hint = f"pip download --only-binary=:all: --python-version {self.python} --implementation cp --abi {self.abi} --platform {self.platform}"
        return f"made for a host, '{', '.join(platforms)}', not for WebAssembly; '{hint}' fetches what fits"


# ---- one wheel --------------------------------------------------------------------------------------------------------------


def name_parts(file_name):
    """(name, version, tags) that a wheel's file name claims."""
    try:
        name, number, _, wheel_tags = utils.parse_wheel_filename(file_name)
    except utils.InvalidWheelFilename as why:
        raise Refused(f"not a wheel's file name (NAME-VERSION-PYTHON-ABI-PLATFORM.whl): {why}") from None
    except version.InvalidVersion as why:
        raise Refused(f"its file name holds no valid version: {why}") from None
    return name, number, wheel_tags


def extra_kinds(info):
    """The numbers of its extra fields."""
    kinds, rest = set(), info.extra
    while len(rest) >= 4:
        kind, length = struct.unpack("<HH", rest[:4])
        kinds.add(kind)
        rest = rest[4 + length:]
    return kinds


def check_member(info):
    """One member's name and kind: nothing that could land outside, nothing but plain files."""
    name = info.orig_filename
    parts = name.rstrip("/").split("/")
    if not name or "\0" in name or "\\" in name or ":" in parts[0]:
        raise Refused(f"member {name!r} has a name that is not allowed")
    if name.startswith("/"):
        raise Refused(f"member {name!r} has an absolute path")
    if ".." in parts:
        raise Refused(f"member {name!r} would land outside of the package ('..')")
    if "" in parts or "." in parts:
        raise Refused(f"member {name!r} has a path that is not in its plain form")
    if len(parts) > 2 and parts[0].endswith(".data") and parts[1] in ("purelib", "platlib"):
        raise Refused(f"it keeps modules below '{parts[0]}/{parts[1]}', which Pyodide does not unpack")
    if UNICODE_PATH in extra_kinds(info):
        raise Refused(f"member {name!r} has a second name (Unicode path extra field), which Pyodide would take and RECORD does not know")
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise Refused(f"member {name!r} is {'a symbolic link' if kind == stat.S_IFLNK else 'a special file'}, expected plain files")
    if info.flag_bits & 1:
        raise Refused(f"member {name!r} is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise Refused(f"member {name!r} is packed by method {info.compress_type}, expected stored or deflated")


def check_sizes(infos, size):
    total, packed = sum(info.file_size for info in infos), sum(info.compress_size for info in infos)
    if len(infos) > MEMBERS_MAX:
        raise Refused(f"it has {len(infos)} members, expected at most {MEMBERS_MAX}")
    if total > UNPACKED_MAX or (total > SUSPICIOUS_SIZE and total > SUSPICIOUS_RATIO * size):
        raise Refused(f"it would unpack to {total} bytes from {size}: a zip bomb")
    if packed > size:
        raise Refused(f"its members claim {packed} packed bytes in a file of {size}: they overlap")


def members(archive, size):
    """{name: ZipInfo} of its files."""
    infos = archive.infolist()
    check_sizes(infos, size)
    files, folders = {}, set()
    for info in infos:
        check_member(info)
        name = info.orig_filename
        if name.endswith("/"):
            folders.add(name.rstrip("/"))
            continue
        if name in files:
            raise Refused(f"member {name!r} is there twice")
        files[name] = info
        parts = name.split("/")
        folders.update("/".join(parts[:end]) for end in range(1, len(parts)))
    for name in files:
        if name in folders:
            raise Refused(f"member {name!r} is a file and a directory")
    return files


def read_small(archive, files, name):
    if name not in files:
        raise Refused(f"it has no '{name}'")
    if files[name].file_size > METADATA_MAX:
        raise Refused(f"'{name}' has {files[name].file_size} bytes, expected at most {METADATA_MAX}")
    try:
        return archive.read(files[name]).decode()
    except UnicodeDecodeError:
        raise Refused(f"'{name}' is not UTF-8") from None


def headers(text):
    return email.parser.Parser().parsestr(text, headersonly=True)


def info_folder(files, name, number):
    """The one NAME-VERSION.dist-info, which says the same as the file name."""
    found = sorted({path.split("/")[0] for path in files if path.split("/")[0].endswith(".dist-info")})
    if len(found) != 1:
        raise Refused(f"it has {len(found)} .dist-info directories, expected one")
    parts = found[0][: -len(".dist-info")].rsplit("-", 1)
    try:
        same = len(parts) == 2 and utils.canonicalize_name(parts[0]) == name and version.Version(parts[1]) == number
    except version.InvalidVersion:
        same = False
    if not same:
        raise Refused(f"its file name says {name} {number}, but inside it is '{found[0]}': it was renamed")
    return found[0]


def member_digest(archive, info, algorithm):
    digest = hashlib.new(algorithm)
    with archive.open(info) as member:
        while chunk := member.read(1 << 20):
            digest.update(chunk)
    return digest.digest()


def unpadded(digest):
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def record_rows(archive, files, folder):
    """{path: (algorithm, hash)} of RECORD; None for what has no hash."""
    rows = {}
    for row in csv.reader(io.StringIO(read_small(archive, files, f"{folder}/RECORD"))):
        if not row:
            continue
        if len(row) != 3:
            raise Refused(f"RECORD has a row of {len(row)} fields, expected path, hash and size: {row[0]!r}")
        if row[0] in rows:
            raise Refused(f"RECORD names {row[0]!r} twice")
        rows[row[0]] = tuple(row[1].split("=", 1)) if row[1] else None
        if rows[row[0]] and rows[row[0]][0] not in HASHES:
            raise Refused(f"RECORD has a hash of kind {row[1].split('=')[0]!r} for {row[0]!r}, expected sha256 or better")
    return rows


def check_record(archive, files, folder):
    """Every member has the bytes that RECORD says, and RECORD says nothing else."""
    rows = record_rows(archive, files, folder)
    for path in rows:
        if path not in files and not path.endswith("/"):
            raise Refused(f"RECORD names {path!r}, which is not there")
    for path, info in files.items():
        if path in (f"{folder}/{name}" for name in UNSIGNED):
            continue
        row = rows.get(path)
        if row is None:
            raise Refused(f"RECORD has no hash of {path!r}")
        if unpadded(member_digest(archive, info, row[0])) != row[1].rstrip("="):
            raise Refused(f"{path!r} has not the bytes that RECORD says")


def check_libraries(archive, files):
    """Compiled modules are WebAssembly, whatever the tags claim."""
    for path, info in files.items():
        if not re.search(r"\.so(\.\d+)*$", path):
            continue
        with archive.open(info) as member:
            magic = member.read(4)
        if magic == b"\x7fELF":
            raise Refused(f"{path!r} is an ELF library for a host, not WebAssembly")
        if magic != b"\0asm":
            raise Refused(f"{path!r} is not WebAssembly")


def check_wheel_file(archive, files, folder, wheel_tags):
    wheel = headers(read_small(archive, files, f"{folder}/WHEEL"))
    if not str(wheel.get("Wheel-Version", "")).startswith("1."):
        raise Refused(f"its format is of version {wheel.get('Wheel-Version')!r}, expected 1.x")
    inside = set()
    for text in wheel.get_all("Tag", []):
        inside.update(tags.parse_tag(text) if text.count("-") == 2 else [])
    if inside != set(wheel_tags):
        raise Refused(f"its file name says {' '.join(sorted(map(str, wheel_tags)))}, but inside it is for "
                      f"{' '.join(sorted(map(str, inside))) or 'nothing'}: it was renamed")


def plain(requirement):
    """A requirement without its marker, names in their normal form."""
    extras = ",".join(sorted(utils.canonicalize_name(extra) for extra in requirement.extras))
    return utils.canonicalize_name(requirement.name) + (f"[{extras}]" if extras else "") + str(requirement.specifier)


def first_line(why):
    """Without the picture of the place that packaging draws below it."""
    return str(why).partition("\n")[0]


def dependencies(metadata, target):
    """(depends, {extra: depends}) for the target."""
    parsed = []
    for text in metadata.get_all("Requires-Dist", []):
        try:
            parsed.append(requirements.Requirement(text))
        except requirements.InvalidRequirement as why:
            raise Refused(f"its METADATA asks for {text!r}, which is no requirement: {first_line(why)}") from None

    def chosen(extra):
        environment = dict(target.environment(), extra=extra)
        return {plain(one) for one in parsed if one.marker is None or one.marker.evaluate(environment)}

    try:
        base = chosen("")
        extras = {utils.canonicalize_name(extra): sorted(chosen(extra) - base) for extra in metadata.get_all("Provides-Extra", [])}
    except (markers.UndefinedComparison, markers.UndefinedEnvironmentName, version.InvalidVersion) as why:
        raise Refused(f"its METADATA has a marker that cannot be evaluated: {why}") from None
    return sorted(base), extras


def check_metadata(metadata, name, number, target):
    try:
        same = utils.canonicalize_name(metadata.get("Name", "")) == name and version.Version(metadata.get("Version", "")) == number
    except version.InvalidVersion:
        same = False
    if not same:
        raise Refused(f"its file name says {name} {number}, but its METADATA {metadata.get('Name')} {metadata.get('Version')}: it was renamed")
    wanted = metadata.get("Requires-Python")
    try:
        if wanted and not specifiers.SpecifierSet(wanted).contains(target.full_version, prereleases=True):
            raise Refused(f"it wants Python {wanted}, this Pyodide is {target.full_version}")
    except specifiers.InvalidSpecifier as why:
        raise Refused(f"its METADATA has a bad Requires-Python: {why}") from None


def modules(files):
    """The modules that a user would import: the topmost package or module of every source and compiled file."""
    packages = {path.rsplit("/", 1)[0] for path in files if re.search(r"/__init__\.(py|so)$", path)}
    found, loose = set(), set()
    for path in files:
        parts = path.split("/")
        if not re.search(r"\.(py|so)$", path) or parts[0].endswith((".dist-info", ".data", ".libs")):
            continue
        tops = [end for end in range(1, len(parts)) if "/".join(parts[:end]) in packages]
        if tops:
            found.add(".".join(parts[: tops[0]]))
        elif len(parts) == 1:
            found.add(parts[0].split(".")[0])
        else:
            loose.add(parts[0])
    found.update(top for top in loose if not any(name.split(".")[0] == top for name in found))
    return sorted(name for name in found
                  if all(part.isidentifier() for part in name.split(".")) and name.split(".")[0] not in NOT_IMPORTED)


def look_inside(file, size, file_name, target):
    name, number, wheel_tags = name_parts(file_name)
    if not target.tags & wheel_tags:
        raise Refused(target.why_not(wheel_tags))
    with zipfile.ZipFile(file) as archive:
        files = members(archive, size)
        folder = info_folder(files, name, number)
        check_wheel_file(archive, files, folder, wheel_tags)
        metadata = headers(read_small(archive, files, f"{folder}/METADATA"))
        check_metadata(metadata, name, number, target)
        check_record(archive, files, folder)
        check_libraries(archive, files)
    depends, extras = dependencies(metadata, target)
    return name, {"version": str(number), "file": file_name, "size": size, "tags": sorted(map(str, wheel_tags)),
                  "depends": depends, "extras": extras, "imports": modules(files)}


def look(path, target):
    """(name, what the lock says of it); Refused with the reason."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)) as file:  # it may be a pipe
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise Refused("not a regular file")
            digest = hashlib.sha256()
            while chunk := file.read(1 << 20):
                digest.update(chunk)
            file.seek(0)
            name, package = look_inside(file, status.st_size, os.path.basename(path), target)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError,
            struct.error, csv.Error) as why:
        raise Refused(f"corrupt: {why}") from None
    except OSError as why:
        raise Refused(why.strerror or str(why)) from None
    package["sha256"] = digest.hexdigest()
    return name, package



# ---- a set of wheels ----------------------------------------------------------------------------------------------------------


def needs(packages, asked):
    """[(who, Requirement)] of all that a lock's packages need, with those extras only that somebody asks for."""
    wanted = {name: set() for name in packages}
    todo = [(None, requirements.Requirement(text)) for text in asked]
    todo += [(name, requirements.Requirement(text)) for name, package in packages.items() for text in package["depends"]]
    seen = []
    while todo:
        who, requirement = todo.pop()
        seen.append((who, requirement))
        name = utils.canonicalize_name(requirement.name)
        for extra in map(utils.canonicalize_name, requirement.extras):
            if name not in packages or extra in wanted[name]:
                continue
            wanted[name].add(extra)
            todo += [(f"{name}[{extra}]", requirements.Requirement(text)) for text in packages[name]["extras"].get(extra, [])]
    return seen


def misfits(packages, asked, touched):
    """What does not fit together, as sentences; only where one of `touched` is concerned."""
    wrong = []
    for who, requirement in needs(packages, asked):
        name = utils.canonicalize_name(requirement.name)
        by = f", which '{who}' needs," if who else ""
        if touched.isdisjoint({name, (who or name).split("[")[0]}):
            continue
        if name not in packages:
            wrong.append(f"'{plain(requirement)}'{by} is neither among these wheels nor in the store")
            continue
        have = packages[name]["version"]
        if not requirement.specifier.contains(have, prereleases=True):
            wrong.append(f"'{plain(requirement)}'{by} does not fit the {name} {have} that is there")
        for extra in sorted(set(map(utils.canonicalize_name, requirement.extras)) - set(packages[name]["extras"])):
            wrong.append(f"{name} {have} has no extra '{extra}'")
    return sorted(set(wrong))


def gather(paths, wanted):
    """Files as named, and wheels of directories: with a lock from elsewhere only those that it names."""
    file_names = {package["file"] for package in wanted.values()} if wanted is not None else None
    found = []
    for path in paths:
        if not os.path.isdir(path):
            found.append(path)
            continue
        names = sorted(os.listdir(path))
        found += [os.path.join(path, name) for name in names if name.endswith((".whl", ".tar.gz", ".tar.bz2", ".zip"))
                  and (file_names is None or name in file_names)]
        if not any(name.endswith(".whl") for name in names):
            raise Refused(f"there is no wheel in '{path}'")
    return found


def agree(name, package, wanted):
    """Is it the file that a lock from elsewhere names?"""
    if name not in wanted:
        raise Refused(f"the lock file does not name '{name}'")
    if package["sha256"] != wanted[name]["sha256"]:
        raise Refused(f"sha256 is {package['sha256']}, but the lock file wants {wanted[name]['sha256']}")


def inspect(request):
    target = Target(request["target"])
    packages, sources, refused = {}, {}, []
    wanted = request["wanted"]
    for path in gather(request["files"], wanted):
        try:
            if not path.endswith(".whl"):
                raise Refused("not a wheel (.whl); of a source archive nothing can be built here: pip takes --only-binary=:all:")
            name, package = look(path, target)
            if wanted is not None:
                agree(name, package, wanted)
            if name in packages and packages[name]["sha256"] != package["sha256"]:
                raise Refused(f"'{os.path.basename(sources[name])}' is a wheel of '{name}', too")
            packages[name], sources[name] = package, path
        except Refused as why:
            refused.append(f"'{path}': {why}")
    missing = sorted(set(wanted or ()) - set(packages)) if not refused else []
    refused += [f"'{wanted[name]['file']}', which the lock file names, is not there" for name in missing]
    whole = dict(request["packages"], **packages)
    if not refused and not request["no_deps"]:
        refused = misfits(whole, request["asked"], set(packages))
    return {"refused": refused} if refused else {"packages": packages, "sources": sources}


# ---- fetching ----------------------------------------------------------------------------------------------------------------


def say(text):
    print(f"mandor wheels: {text}", file=sys.stderr, flush=True)


def prefer(ranks):
    """Of two files of the same version and kind pip shall take that of the higher rank, {URL without fragment: rank}."""
    from pip._internal.index.package_finder import CandidateEvaluator
    theirs = CandidateEvaluator._sort_key
    CandidateEvaluator._sort_key = lambda self, candidate: (
        *theirs(self, candidate), ranks.get(urllib.parse.unquote(candidate.link.url_without_fragment), 0))


def note_links(path):
    """Every file that pip sees in an index goes down there: what there is, where nothing fits."""
    from pip._internal.index.package_finder import LinkEvaluator
    theirs = LinkEvaluator.evaluate_link
    notes = open(path, "a", encoding="utf-8", errors="replace", buffering=1)

    def evaluate_link(self, link):
        notes.write(f"{utils.canonicalize_name(self.project_name)} {link.filename}\n")
        return theirs(self, link)

    LinkEvaluator.evaluate_link = evaluate_link


def files_seen(path, name):
    """Those of this package; pages of links show those of others, too."""
    try:
        with open(path, encoding="utf-8", errors="replace") as notes:
            names = {line.rstrip("\n").partition(" ")[2] for line in notes if line.startswith(f"{name} ")}
    except FileNotFoundError:
        return set()
    return {one for one in names if re.match(r"(.+?)-\d", one) and utils.canonicalize_name(re.match(r"(.+?)-\d", one)[1]) == name}


def what_there_is(names):
    """Of files that do not fit, in words: versions and platforms."""
    numbers, platforms = set(), set()
    for name in names:
        try:
            _, number, wheel_tags = name_parts(name)
        except Refused:
            continue
        numbers.add(number)
        platforms.update(str(tag) if "wasm32" in tag.platform else re.match("[a-z]+", tag.platform)[0] for tag in wheel_tags)
    if not numbers:
        return "a source archive alone, of which nothing can be built here" if names else None
    first, last = str(min(numbers)), str(max(numbers))
    return f"{first if first == last else f'{first} to {last}'} for {', '.join(sorted(platforms))}"


def none_fits(name, path, target):
    """Why there is no file of this package for the target."""
    name = utils.canonicalize_name(name)
    found = what_there_is(files_seen(path, name))
    digits = "".join(target.python.split("."))
    if found is None:
        return f"no index has a package '{name}'"
    return (f"no wheel of '{name}' can be loaded here: looked for py3-none-any and cp{digits}-{target.abi}-{target.platform} (or abi3), "
            f"there is {found}")


def end_with(parent):
    """Have the kernel end this process when the one that started it ends (prctl(2), PR_SET_PDEATHSIG)."""
    try:
        import ctypes
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    except (ImportError, AttributeError, OSError):
        return  # then it goes on to its end, and what it fetched is swept
    if os.getppid() != parent:
        os._exit(125)


def pip_process(arguments, target, ranks, seen, output):
    """In a process of its own: pip, with the target's answers to markers."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    from pip._internal.cli.main import main
    from pip._vendor.packaging import markers as pip_markers
    pip_markers.default_environment = target.environment
    prefer(ranks)
    note_links(seen)
    return main(arguments)


def run_pip(arguments, target, ranks, seen):
    """(exit code, what it said).  `seen`: a file for the names of all files that it looks at."""
    output, theirs = os.pipe()
    ours = os.getpid()
    child = os.fork()
    if child == 0:
        code = 125
        try:
            end_with(ours)
            os.close(output)
            code = pip_process(arguments, target, ranks, seen, theirs)
        except BaseException as why:  # the parent says it
            print(f"ERROR: {why!r}", flush=True)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(theirs)
    said = []
    with open(output, errors="replace") as lines:
        for line in lines:
            said.append(line)
            if sys.stderr.isatty():
                sys.stderr.write(line)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "".join(said)


def indented(said, title):
    """The lines below a title of pip's."""
    block = re.search(re.escape(title) + r"\n((?: {4}.+\n)+)", said)
    return [line.strip() for line in block[1].splitlines()] if block else []


def conflict(said, explain):
    """Why pip found no versions that fit together, or None."""
    causes = indented(said, "The conflict is caused by:")
    nowhere = indented(said, "no matching distributions available for your environment:")
    if not causes:
        return None
    more = f"; and {len(causes) - 3} lines like these" if len(causes) > 3 else ""
    return f"no versions fit together: {'; '.join(causes[:3])}{more}" + "".join(f"; {explain(name)}" for name in nowhere)


def complaints(said, explain):
    """What pip says was wrong, in one sentence: its ERROR lines, or the drawing of newer ones.  explain(name): of which package no file fits."""
    found = conflict(said, explain)
    if found:
        return found
    nothing = re.search(r"satisfies the requirement ([A-Za-z0-9][\w.-]*).*\(from versions: none\)", said)
    if nothing:
        return explain(nothing[1])
    lines = re.findall(r"^(?:ERROR: (?!Exception:)|× )(.*(?:\n {2,}.*)*)", said, re.M) + re.findall(r"^╰─> (.*)", said, re.M)
    lines = [re.sub(r"\(from versions: .*?((?:, [^,()]+){3}\))", r"(from versions: …\1", line)
             for line in lines if not line.startswith("Ignored the following")]
    lines = lines or said.strip().splitlines()[-1:]
    return re.sub(r"\s+", " ", "; ".join(lines)).strip() or "pip failed without a word"


class Pyodide:
    """The packages that Pyodide itself was built with, as its npm package says: names, versions, hashes, and where they are."""

    def __init__(self, folder, url, target):
        try:
            with open(os.path.join(folder, "pyodide-lock.json"), encoding="utf-8") as file:
                lock = json.load(file)
            info = lock["info"]
            platform = f"pyemscripten_{info['abi_version']}_{info['arch']}"
            self.packages = {utils.canonicalize_name(name): package for name, package in lock["packages"].items()
                             if package["file_name"].endswith(".whl")}
            self.url = (url or self.home(folder)).rstrip("/") + "/"
        except (OSError, ValueError, KeyError, AttributeError) as why:
            raise Refused(f"'{folder}' is not the directory of the npm package pyodide: {why}") from None
        if platform != target.platform:
            raise Refused(f"the Pyodide in '{folder}' is of ABI '{platform}', expected '{target.platform}'")

    @staticmethod
    def home(folder):
        """Where its loader would get packages from."""
        with open(os.path.join(folder, "package.json"), encoding="utf-8") as file:
            number = json.load(file)["version"]
        with open(os.path.join(folder, "pyodide.mjs"), encoding="utf-8") as file:
            found = re.search(r"(https://[\w./-]+/v)\$\{\w+\}(/full/)", file.read())
        if found is None:
            raise ValueError("its loader does not say where its packages are; use --pyodide-url")
        return found[1] + number + found[2]

    def link(self, name):
        package = self.packages[name]
        return f"{urllib.parse.urljoin(self.url, urllib.parse.quote(package['file_name']))}#sha256={package['sha256']}"


def page(links):
    """Links to wheels as a page (PEP 503), which pip takes beside its indexes."""
    rows = "".join(f'<a href="{html.escape(link)}">{html.escape(file_name)}</a><br>\n' for file_name, link in links)
    return f"<!DOCTYPE html><html><body>\n{rows}</body></html>\n"


def parse_asked(texts):
    asked = []
    for text in texts:
        try:
            asked.append(requirements.Requirement(text))
        except requirements.InvalidRequirement as why:
            if text.endswith(".whl") or "/" in text:
                raise Refused(f"'{text}' is no requirement such as pandas, 'pandas[excel]' or 'pandas>=3': 'mandor wheels import' takes files") from None
            raise Refused(f"'{text}' is no requirement such as pandas, 'pandas[excel]' or 'pandas>=3': {first_line(why)}") from None
    return asked


def contradicts(asked, name, number):
    return any(utils.canonicalize_name(one.name) == name and (one.url or not one.specifier.contains(number, prereleases=True)) for one in asked)


def store_kept(request, asked):
    """Names of what is in the store and stays, since it is not asked for anew."""
    upgraded = {utils.canonicalize_name(one.name) for one in asked} if request["upgrade"] else set()
    return [name for name, package in request["packages"].items()
            if name not in upgraded and not contradicts(asked, name, package["version"])]


def store_link(request, name):
    return f"file://{urllib.parse.quote(request['paths'][name])}#sha256={request['packages'][name]['sha256']}"


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def unreachable(said, pyodide):
    """Did pip fail to get something from where Pyodide keeps its packages?"""
    parts = urllib.parse.urlsplit(pyodide.url)
    trouble = said[re.search(r"ERROR: |error: |$", said).start():]
    return (parts.hostname or parts.path) in trouble and not re.search("conflicting dependencies|No matching distribution", trouble)


def constraints_of(request, kept):
    """Lines that keep these packages of the store as they are, and whatever comes new such that they can live with it."""
    lines = [f"{name}=={request['packages'][name]['version']}" for name in kept]
    for name in kept:
        for one in map(requirements.Requirement, request["packages"][name]["depends"]):
            lines += [f"{one.name}{one.specifier}"] if one.specifier else []
    return lines


def plans(request, pyodide, asked):
    """What to try in turn: constraints, and what to say when they do not fit."""
    kept = store_kept(request, asked)
    lines = constraints_of(request, kept)
    if pyodide is not None:
        own = [f"{name}=={package['version']}" for name, package in pyodide.packages.items()
               if name not in kept and not contradicts(asked, name, package["version"])]
        yield own + lines, "not with the versions that Pyodide was built with"
    yield lines, "not with what is in the store"
    if lines:
        yield [], "not at all"


def pip_arguments(request, target):
    return ["download", *target.pip_options(), "--dest", request["into"], "--no-input", "--progress-bar", "off",
            "--disable-pip-version-check"]


def known_files(request, pyodide):
    """[(file name, link)] and {URL: rank} of the files that come before those of the index: the store's, then Pyodide's."""
    links = [(package["file"], store_link(request, name)) for name, package in request["packages"].items()]
    ranks = {link: 2 for _, link in links}
    if pyodide is not None:
        own = [(package["file_name"], pyodide.link(name)) for name, package in pyodide.packages.items()]
        links += own
        ranks.update((link, 1) for _, link in own)
    return links, {urllib.parse.unquote(link.split("#")[0]): rank for link, rank in ranks.items()}


def seen_in(request):
    return os.path.join(request["scratch"], "seen.txt")


def explainer(request, target):
    return lambda name: none_fits(name, seen_in(request), target)


def try_plan(request, target, asked, lines, pyodide):
    scratch = request["scratch"]
    links, ranks = known_files(request, pyodide)
    constraints = write(os.path.join(scratch, "constraints.txt"), "".join(f"{line}\n" for line in lines))
    found = write(os.path.join(scratch, "known.html"), page(links))
    return run_pip([*pip_arguments(request, target), "--constraint", constraints, "--find-links", found, *map(str, asked)], target, ranks, seen_in(request))


def download(request, target, asked, pyodide):
    """pip's choice of versions that fit together: those of the store and of Pyodide when they do, else others."""
    todo, notes, explain = list(plans(request, pyodide, asked)), [], explainer(request, target)
    while todo:
        lines, but = todo.pop(0)
        code, said = try_plan(request, target, asked, lines, pyodide)
        if code == 0:
            for note in notes:
                say(note)
            return
        if "[Errno 28]" in said:
            store = os.path.dirname(os.path.dirname(request["into"]))
            raise Refused(f"no space is left, in the store '{store}' or where pip keeps what is temporary (TMPDIR)")
        if "DO NOT MATCH THE HASHES" in said:
            break  # never a reason to look for other bytes
        if pyodide is not None and unreachable(said, pyodide):
            say(f"Pyodide's own packages cannot be had from {pyodide.url}; looking in the package index")
            pyodide = None
            todo = list(plans(request, pyodide, asked))
        else:
            notes.append(f"{but}: {complaints(said, explain)[:300]}")
    raise Refused(complaints(said, explain))


def download_locked(request, target, pyodide):
    """Just the files that a lock from elsewhere names."""
    lines = []
    for name, package in request["wanted"].items():
        ours = pyodide.packages.get(name) if pyodide else None
        place = f"{name} @ {pyodide.link(name).split('#')[0]}" if ours and ours["sha256"] == package["sha256"] else f"{name}=={package['version']}"
        lines.append(f"{place} --hash=sha256:{package['sha256']}\n")
    wanted = write(os.path.join(request["scratch"], "wanted.txt"), "".join(lines))
    code, said = run_pip([*pip_arguments(request, target), "--no-deps", "--require-hashes", "--requirement", wanted], target, {}, seen_in(request))
    if code != 0:
        raise Refused(complaints(said, explainer(request, target)))


def fetch(request):
    try:
        import pip  # noqa: F401
    except ImportError:
        raise Refused("the python3 in PATH has no pip, which 'mandor wheels add' takes; install python3-pip, or fetch wheels elsewhere and use 'mandor wheels import'") from None
    target = Target(request["target"])
    pyodide = Pyodide(request["pyodide"], request["pyodide_url"], target) if request["pyodide"] else None
    if request["wanted"] is not None:
        download_locked(request, target, pyodide)
    else:
        download(request, target, parse_asked(request["asked"]), pyodide)
    return {"files": sorted(name for name in os.listdir(request["into"]) if name.endswith(".whl"))}


def main():
    request = json.load(sys.stdin)
    end_with(request["parent"])
    try:
        answer = {"fetch": fetch, "inspect": inspect}[request["do"]](request)
    except Refused as why:
        answer = {"refused": [str(why)]}
    sys.stdout.buffer.write(json.dumps(answer, ensure_ascii=False).encode(errors="replace"))  # names of files may be any bytes


if __name__ == "__main__":
    main()
