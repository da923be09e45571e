#!/usr/bin/env python3
"""Checks the rules of the source tree that a compiler cannot: who includes whom, the header contract, sizes, names.

    check_tree.py [ROOT]

Prints file:line: message for each breach and exits with 1 when there is one; warnings do not count.
The layer table is tools/layers.txt; the owners of third-party libraries are K3_THIRD_PARTY_<layer> in cmake/deps.cmake.
"""
import os
import re
import subprocess
import sys

# Include prefix -> library name of cmake/deps.cmake. Closed: an unknown header is an error.
LIBRARIES = [
    ("fmt/", "fmt"), ("spdlog/", "spdlog"), ("simdjson.h", "simdjson"), ("xxhash.h", "xxhash"), ("zstd.h", "zstd"),
    ("nlohmann/", "nlohmann"), ("pcre2.h", "pcre2"), ("CLI/", "cli11"), ("histedit.h", "libedit"),
    ("editline/", "libedit"), ("boost/", "boost"), ("lmdb.h", "lmdb"), ("prometheus/", "prometheus"), ("liburing.h", "liburing"),
    ("numa.h", "numa"), ("mpi.h", "mpi"), ("nccl.h", "nccl"), ("ucp/", "ucx"), ("cuda", "cuda"), ("vector_functions.h", "cuda"), ("cublas", "cublas"),
    ("cudnn", "cudnn"), ("cutlass/", "cutlass"), ("jpeglib.h", "jpeg"), ("turbojpeg.h", "jpeg"), ("png.h", "png"),
    ("webp/", "webp"), ("libavcodec/", "libav"), ("libavformat/", "libav"), ("libavutil/", "libav"),
    ("libswscale/", "libav"), ("gtest/", "gtest"), ("gmock/", "gmock"), ("rapidcheck", "rapidcheck"), ("benchmark/", "benchmark"),
    ("openssl/", "openssl"), ("zlib.h", "zlib"), ("sqlite3.h", "sqlite"), ("curl/", "curl"),
]
TEST_LIBRARIES = {"gtest", "gmock", "rapidcheck", "benchmark", "nlohmann", "fmt"}
HEAVY = {"nlohmann", "cli11", "rapidcheck", "simdjson", "boost"}  # in .cc files only
SYSTEM_FOLDERS = ("sys/", "linux/", "asm/", "net/", "netinet/", "arpa/")
SYSTEM_HEADERS = set("""aio.h cpuid.h cxxabi.h dirent.h dlfcn.h elf.h errno.h execinfo.h fcntl.h fnmatch.h ftw.h getopt.h glob.h
grp.h immintrin.h langinfo.h link.h locale.h malloc.h netdb.h poll.h pthread.h pty.h pwd.h sched.h semaphore.h setjmp.h signal.h spawn.h stdint.h
stdio.h stdlib.h string.h strings.h syscall.h termios.h time.h ucontext.h unistd.h utime.h utmp.h wait.h x86intrin.h nmmintrin.h""".split())

CUDA_LAYERS = {"tensor", "ops", "comm"}
CONTRACT_LAYERS = {"ops", "comm", "cache", "format"}
CONTRACT_WORDS = ["Purpose", "Shapes", "Units", "Memory", "Threads", "Errors", "Source"]
CODE_SUFFIXES = (".h", ".cc", ".cu", ".cuh")
MOST_LINES, MOST_CUDA_LINES, REVIEW_LINES, REVIEW_FUNCTION_LINES = 800, 1000, 500, 80
MOST_SOURCES = 15
CROWDED = set()  # folders that may hold more sources, each with a reason
MOST_README_LINES = 40
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:" + "|".join(["work", "root", "farm"]) + r")/")
FREE_NAMES = {"README.md", "CMakeLists.txt", "CMakePresets.json", "MANIFEST.json", "LICENSE", "Makefile", "CHANGELOG.md",
              "NOTICE", "Doxyfile", "Dockerfile", "SOURCES.md", "PKGBUILD", "CONTRIBUTING.md"}


class Tree:
    def __init__(self, root):
        self.root = root
        self.errors, self.warnings = [], []
        self.files = self.list_files()
        self.layers = self.read_layers()
        self.owners = self.read_owners()

    def error(self, path, line, message):
        self.errors.append(f"{path}:{line}: {message}")

    def warn(self, path, line, message):
        self.warnings.append(f"{path}:{line}: warning: {message}")

    def list_files(self):
        """Tracked files and new ones that git does not ignore; outside a repository every file but build trees."""
        if os.path.exists(os.path.join(self.root, ".git")):
            command = ["git", "-C", self.root, "-c", "safe.directory=*", "ls-files", "-z", "-co", "--exclude-standard"]
            result = subprocess.run(command, capture_output=True, check=False)
            if result.returncode == 0:
                names = result.stdout.decode("utf-8", "replace").split("\0")
                return sorted({n for n in names if n and os.path.isfile(os.path.join(self.root, n))})
        found = []
        for folder, folders, names in os.walk(self.root):
            folders[:] = [f for f in folders if f not in (".git", "build", ".venv", ".cache", "__pycache__")]
            found += [os.path.relpath(os.path.join(folder, n), self.root) for n in names]
        return sorted(found)

    def lines(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8", errors="replace") as file:
            return file.read().split("\n")

    def read_layers(self):
        layers = {}
        for line in self.lines("tools/layers.txt"):
            match = re.match(r"([a-z]+):(.*)$", line)
            if match:
                layers[match[1]] = match[2].split()
        return layers

    def read_owners(self):
        owners = {}
        if "cmake/deps.cmake" in self.files:
            for line in self.lines("cmake/deps.cmake"):
                match = re.match(r"\s*(?:set|list)\((?:APPEND )?K3_THIRD_PARTY_([a-z]+)\s+([^)]*)\)", line)
                if match:
                    owners.setdefault(match[1], set()).update(match[2].split())
        return owners

    def layer_of(self, path):
        parts = path.split("/")
        return parts[2] if len(parts) > 3 and parts[:2] == ["src", "k3"] else None


def is_test(path):
    return bool(re.search(r"_(test|bench|cases|fuzz)\.(cc|h|cu|cuh)$", path)) or path.startswith(("tests/", "bench/"))


def is_code(path):
    return path.endswith(CODE_SUFFIXES) and path.startswith(("src/", "tests/", "bench/"))


def is_generated(lines):
    return any(re.match(r"//\s*Generated\b", line) for line in lines[:5])


def check_include(tree, path, number, name, quoted):
    layer = tree.layer_of(path)
    if quoted:
        beside = os.path.join(tree.root, os.path.dirname(path), name)
        if path.startswith(("tests/", "bench/")) and "/" not in name and os.path.isfile(beside):
            return  # helpers of tests that lie outside src
        if path.startswith("tests/") and name.startswith("tests/") and os.path.isfile(os.path.join(tree.root, name)):
            return  # helpers that test folders share
        if not name.startswith("k3/"):
            tree.error(path, number, f'"{name}" is not written from the source root ("k3/...")')
            return
        if not os.path.isfile(os.path.join(tree.root, "src", name)):
            tree.error(path, number, f'"{name}" does not exist')
            return
        target = name.split("/")[1]
        if layer and target != layer:
            allowed = tree.layers.get(layer, [])
            if target not in allowed and name[len("k3/"):] not in allowed:
                tree.error(path, number, f"{layer} may not include {name} (tools/layers.txt: {' '.join(allowed) or 'nothing'})")
        return
    if "." not in name and "/" not in name and name != "rapidcheck":
        return  # standard library
    if name.startswith(SYSTEM_FOLDERS) or name in SYSTEM_HEADERS:
        return
    library = next((lib for prefix, lib in LIBRARIES if name.startswith(prefix)), None)
    if library is None:
        tree.error(path, number, f"<{name}> is neither a system header nor in the library table of tools/check_tree.py")
        return
    if library in HEAVY and path.endswith((".h", ".cuh")) and not is_test(path):
        tree.error(path, number, f"<{name}> is a heavy header: in .cc files only")
    if is_test(path) and library in TEST_LIBRARIES:
        return
    if layer is None:
        if library == "cuda" and path.startswith("tests/emulator/"):
            return  # its kernels are those of ops
        if path.startswith("src/") or library not in set().union(TEST_LIBRARIES, *tree.owners.values()):
            tree.error(path, number, f"<{name}>: no layer here owns {library}")
    elif library not in tree.owners.get(layer, set()) and not (library == "cuda" and layer in CUDA_LAYERS):
        owners = sorted(l for l, libs in tree.owners.items() if library in libs)
        tree.error(path, number, f"<{name}>: {layer} does not own {library} (owners: {' '.join(owners) or 'none'})")


def code_only(lines):
    """The lines without comments, strings and character constants (contents blanked, layout kept)."""
    out, in_comment, raw_end = [], False, None
    token = re.compile(r'//.*|/\*|R"([^()\\ ]*)\(|"(?:\\.|[^"\\])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\])+\'')
    for line in lines:
        text, at = "", 0
        while at < len(line):
            if in_comment or raw_end:
                closer = "*/" if in_comment else raw_end
                end = line.find(closer, at)
                if end < 0:
                    break
                at = end + len(closer)
                in_comment, raw_end = False, None
                continue
            match = token.search(line, at)
            if not match:
                text += line[at:]
                break
            text += line[at:match.start()]
            at = match.end()
            if match[0] == "/*":
                in_comment = True
            elif match[0].startswith("R\""):
                raw_end = ")" + match[1] + '"'
            elif not match[0].startswith("//"):
                text += '""'
        out.append(text)
    return out


def check_bodies(tree, path, lines):
    """#if K3_CUDA inside a function body, and long functions. A brace opens a scope (namespace, class, ...) or a body."""
    scopes, head = [], ""
    for number, line in enumerate(code_only(lines), 1):
        directive = re.match(r"\s*#\s*(if|ifdef|ifndef|elif)\b(.*)", line)
        if directive and re.search(r"\bK3_CUDA\b", directive[2]) and any(kind == "body" for kind, _ in scopes):
            tree.error(path, number, "#if K3_CUDA inside a function body")
        if re.match(r"\s*#", line) or line.endswith("\\"):
            continue
        for part in re.split(r"([{};])", line):
            if part == "{":
                scope = re.search(r"\b(namespace|class|struct|union|enum|extern)\b", head) and "(" not in head
                initializer = head.rstrip().endswith(("=", ",", "(", "return")) and not any(k == "body" for k, _ in scopes)
                scopes.append(("scope" if scope or initializer else "body", number))
                head = ""
            elif part == "}":
                if scopes:
                    kind, start = scopes.pop()
                    if kind == "body" and not any(k == "body" for k, _ in scopes) and number - start > REVIEW_FUNCTION_LINES:
                        tree.warn(path, start, f"a function of {number - start} lines (review above {REVIEW_FUNCTION_LINES})")
                head = ""
            elif part == ";":
                head = ""
            else:
                head += part
        head += " "


def check_code_file(tree, path):
    lines = tree.lines(path)
    layer = tree.layer_of(path)
    for number, line in enumerate(lines, 1):
        match = re.match(r'\s*#\s*include\s*([<"])([^">]+)[">]', line)
        if match:
            check_include(tree, path, number, match[2], match[1] == '"')
        if re.match(r"\s*#\s*(if|ifdef|ifndef|elif)\b.*\bK3_CUDA\b", line) and layer not in CUDA_LAYERS:
            tree.error(path, number, "#if K3_CUDA belongs to tensor, ops and comm")
    check_bodies(tree, path, lines)
    count = len(lines) - (lines[-1] == "")
    most = MOST_CUDA_LINES if path.endswith((".cu", ".cuh")) else MOST_LINES
    if not is_generated(lines):
        if count > most:
            tree.error(path, most, f"{count} lines; at most {most}: split it")
        elif count > REVIEW_LINES:
            tree.warn(path, REVIEW_LINES, f"{count} lines (review above {REVIEW_LINES})")
    if path.endswith((".h", ".cuh")):
        if not any(line.startswith("#pragma once") for line in lines):
            tree.error(path, 1, "no #pragma once")
        if layer in CONTRACT_LAYERS:
            check_contract(tree, path, lines)


def check_contract(tree, path, lines):
    if path.endswith("_cases.h") or any(re.match(r"// Internal to [\w/ ]+\.", line) for line in lines[:5]):
        return
    missing = [word for word in CONTRACT_WORDS if not any(re.match(rf"//\s*{word}:", line) for line in lines)]
    if missing:
        tree.error(path, 1, f"the header contract lacks {', '.join(missing)} (or mark the header `// Internal to <folder>.`)")


def check_folders(tree):
    sources = {}
    for path in tree.files:
        if path.startswith("src/k3/") and path.endswith((".cc", ".cu")) and not is_test(path):
            sources.setdefault(os.path.dirname(path), []).append(path)
    for folder, names in sorted(sources.items()):
        if len(names) > MOST_SOURCES and folder not in CROWDED:
            tree.error(folder, 1, f"{len(names)} sources in one folder; at most {MOST_SOURCES}: split it")
    present = sorted({tree.layer_of(p) for p in tree.files if tree.layer_of(p)})
    for layer in present:
        folder = f"src/k3/{layer}"
        if layer not in tree.layers:
            tree.error(folder, 1, "is not a layer of tools/layers.txt")
            continue
        readme = f"{folder}/README.md"
        if readme not in tree.files:
            tree.error(folder, 1, "has no README.md (purpose, main types, where to start reading)")
        elif len(tree.lines(readme)) - 1 > MOST_README_LINES:
            tree.error(readme, MOST_README_LINES, f"{len(tree.lines(readme)) - 1} lines; at most {MOST_README_LINES}")


def check_names(tree):
    for path in tree.files:
        if not path.startswith(("src/", "tests/", "tools/", "cmake/", "bench/")) or "/data/" in path or "/corpus/" in path:
            continue
        for part in path.split("/"):
            if part not in FREE_NAMES and not re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9]+)*", part):
                tree.error(path, 1, f"'{part}' is not snake_case")


def check_machine_paths(tree):
    for path in tree.files:
        data = path.startswith(("tests/data/", "models/")) and not path.endswith((".md", ".py", ".sh"))
        if data or "/corpus/" in path or os.path.getsize(os.path.join(tree.root, path)) > 4 << 20:
            continue
        with open(os.path.join(tree.root, path), "rb") as file:
            content = file.read()
        if b"\0" in content[:4096]:
            continue
        for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), 1):
            if MACHINE_PATH.search(line):
                tree.error(path, number, "names a path of one machine")


def check(root):
    tree = Tree(root)
    for path in tree.files:
        if is_code(path):
            check_code_file(tree, path)
    check_folders(tree)
    check_names(tree)
    check_machine_paths(tree)
    return tree


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    tree = check(root)
    for message in tree.warnings + tree.errors:
        print(message)
    print(f"check_tree: {len(tree.files)} files, {len(tree.errors)} errors, {len(tree.warnings)} warnings")
    return 1 if tree.errors else 0


if __name__ == "__main__":
    sys.exit(main())
