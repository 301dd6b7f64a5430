"""Finds paraphrases where the field has a term, and lines that are too long.

Usage: words.py [PATH...]

Reads comments, strings and identifiers of the tracked source files, and whole Markdown texts, below the given paths; by
default of the whole repository. The first line of a documented item is read as well, in crates whose documentation
begins with nouns. Prints `file:line: "found": write REPLACEMENT` for each finding and then their number; exits with 1
if there is any. Exceptions, each with its reason, are in scripts/words_allowed.txt.
"""

import bisect
import fnmatch
import functools
import re
import string
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_COLUMNS = 120

# What is refused, what to write instead, and where: prose (comments, strings, Markdown) or everywhere (identifiers,
# too).
PROSE, EVERYWHERE = "prose", "everywhere"
RULES = [
    (r"\bwords?\b", "token (word only for words of a language)", PROSE),
    (r"(?<![a-z])(next|first|last)_?words?(?![a-z])", "next_token, decoder_start_token", EVERYWHERE),
    (r"\bfolders?\b", "directory", PROSE),
    (r"(?<![a-z])folders?(?![a-z])", "dir", EVERYWHERE),
    (r"\bnumber types?\b", "dtype", PROSE),
    (r"\bway back\b", "backward pass", PROSE),
    (r"\btwo stacks\b", "encoder-decoder", PROSE),
    (r"(?<![a-z])two_stacks(?![a-z])", "encoder_decoder", EVERYWHERE),
    (r"\bbehind\b", "after, follows", PROSE),
    (r"\bin front\b", "before, precedes", PROSE),
    (r"\bso many\b|\bthat many\b|\bas many as\b", "the number of", PROSE),
    (r"\b(of which|that of|those of)\b", "name it again, or restructure", PROSE),
    (r"\b(nobody|somebody|whoever|anybody|strangers?)\b", "caller, user, process, reader", PROSE),
    (r"\b(stands|stood|stand)\b(?! for\b)", "is, appears", PROSE),
    (r"\b(lies|lay(?! out)|lie)\b", "is, is in", PROSE),
    (r"\bgo(es)? by\b", "is named, uses", PROSE),
    (r"\b(says|said)\b|\bsay\b", "specifies, states, reports", PROSE),
    (r"(?<!there )\bis no (?!longer|more|less|different|better|worse)", 'is not a; unknown X "y"', PROSE),
    (r"\bknown here\b", 'unknown X "y"', PROSE),
    (r"\bfrom nothing\b", "from scratch, from config", PROSE),
    (r"(?<![a-z])put[ _]away(?![a-z])|\bputs away\b|\bput .{1,20} away\b", "release", EVERYWHERE),
    (r"\bg[ia]ven? back\b|\bgives? back\b|(?<![a-z])give_back(?![a-z])", "release, free, return", EVERYWHERE),
    (r"\bexchang(e|es|ed|ing)\b", "all-reduce, all-gather, reduce-scatter, communication", PROSE),
    (r"\bheeds?\b|\blooks? around\b|(?<![a-z])look_around(?![a-z])", "vote, agree", EVERYWHERE),
    (r"\bteams?\b", "group", PROSE),
    (r"\bfetch(ed|es|ing)? ahead\b", "prefetch", PROSE),
    (r"\bheads? (is|are) turned\b|\bturned heads?\b|\bturn(ed|s)? by\b|\bangles? to turn\b", "rotary embedding, rotate",
     PROSE),
    (r"\bwindows? of places\b", "sliding window", PROSE),
    (r"\banswer[ _]heads?\b", "classification head, language-modelling head", EVERYWHERE),
    (r"\bby what the loss is multiplied\b", "loss scale", PROSE),
    (r"(?<!learning )(?<!learning-)(?<!transfer )(?<!sampling )\bthe rates?\b", "the learning rate", PROSE),
    (r"\bwhat training keeps\b", "optimizer state", PROSE),
    (r"\bt(aken?|akes|ook) up\b", "resume, load", PROSE),
    (r"\bmeans? harm\b|\bhostile words?\b", "untrusted, malformed", PROSE),
    (r"\bkeys and values( that are| are)? kept\b|\bkept keys\b", "KV cache", PROSE),
    (r"\bkept or run again\b|\brun again (on|in) the\b", "activation checkpointing, recompute", PROSE),
    (r"\brows that go on\b", "incremental decoding", PROSE),
    (r"\blikeliest\b", "most probable; greedy", PROSE),
    (r"\b(draws?|drawn|drew|drawing)\b", "sample; initialize", PROSE),
    (r"(?<![a-z])(drawn?|draws)(?![a-z])", "sample, initialize", EVERYWHERE),
    (r"\bbirth\b|(?<![a-z])birth(?![a-z])", "initialization", EVERYWHERE),
    (r"\bin the opinion of\b", "this rank's vote", PROSE),
    (r"\bopinions?\b", "vote", PROSE),
]
# Parts of identifiers, which are split at underscores and changes of case and joined again as `_part_part_`; the first
# rules are not for names of tests, which are sentences. An identifier is reported once a file.
IDENTIFIERS = [
    (r"_words?_", "token, vocab (word only for words of a language or of memory)"),
    (r"^_leave(_[a-z]+)?_$", "ignore, skip (leave only for a rank that leaves its group)"),
    (r"_judge(d|ments?)_", "rate, score"),
]
SENTENCE_PARTS = 6
IDENTIFIERS_AND_SENTENCES = [
    (r"_teams?_", "group, ranks"),
    (r"_go(es)?_on_", "continue, resume"),
    (r"_(nobody|somebody|everybody|whoever|strangers?)_", "caller, user, process, rank"),
    (r"_(stands|lies)_", "is"),
]
CONSTANTS = [
    (r"^MOST(_|$)", "MAX_"),
    (r"(^|_)(LIMIT|MOST)$", "MAX_"),
]
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
# Languages whose identifiers are read.
WITH_IDENTIFIERS = (".rs", ".cu", ".cuh", ".h", ".cpp", ".c", ".py")
# Crates and directories whose documented items begin with a noun, and beginnings that are clauses instead.
NOUNS_FIRST = tuple(f"crates/{crate}/*.rs" for crate in (
    "bmtrain-core/src", "bmtrain-corpus/src", "bmtrain-dist/src", "cuda-emulator/src", "model-center-base/src",
    "model-center-formats/src", "model-center-import/src", "model-center-recipe/src/recipe/engine",
    "model-center-recipe/src/run"))
CLAUSE = re.compile(r"^\s*//[/!] (What|Of|How|Where|Which|Who|Whose|The same) ")
DOCUMENTED = re.compile(r"^\s*//[/!]")
# Searched in lower-case text, for which Python is faster than for text of either case.
COMPILED = [(re.compile(pattern), write, scope) for pattern, write, scope in RULES]
# One character for one, which str.lower is not for all of them.
LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
# Comments and strings of a source text, by the file's suffix. Markdown is prose as a whole.
SLASHES = re.compile(r"//[^\n]*|/\*.*?\*/|\br(?P<hashes>#*)\".*?\"(?P=hashes)|\"(?:[^\"\\]|\\.)*\""
                     r"|(?P<char>'(?:[^'\\\n]|\\[^\n]{1,10}?)')", re.DOTALL)
PYTHON = re.compile(r"#[^\n]*|\"\"\".*?\"\"\"|'''.*?'''|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'", re.DOTALL)
SHELL = re.compile(r"(?<![\w${'\"])#[^\n]*|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'")
KINDS = {".rs": SLASHES, ".cu": SLASHES, ".cuh": SLASHES, ".h": SLASHES, ".cpp": SLASHES, ".c": SLASHES, ".py": PYTHON,
         ".sh": SHELL, ".toml": SHELL, ".md": None}
NOT_READ = ("README-ZH.md", "*/tests/golden/*", "scripts/words.py", "scripts/words_allowed.txt", "LICENSE",
            "Cargo.lock")
# Lines that cannot be wrapped: with an address, a pinned archive, a row of a table, a line of a Jinja template.
NOT_WRAPPED = re.compile(r"https?://|^[0-9a-f]{64} |^ *\||^\{[%{]")


def allowed_of(text):
    """Rows `GLOB <two spaces or a tab> PATTERN <same> REASON`; the pattern excuses a finding whose line it matches."""
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = re.split(r"\t+| {2,}", line.strip(), maxsplit=2)
        if len(parts) != 3:
            raise SystemExit(f"error[words]: scripts/words_allowed.txt:{number}\n  reason: a row has no reason\n"
                             "  fix: write GLOB, PATTERN and REASON with two spaces between them")
        rows.append((parts[0], re.compile(parts[1], re.IGNORECASE)))
    return rows


def kind_of(path):
    """How comments and strings of a file are found; False for a file that is not read. Programs may lack a suffix."""
    if path.suffix or not path.is_file():
        return KINDS.get(path.suffix, False)
    with path.open("rb") as file:
        return SHELL if file.read(2) == b"#!" else False


def code_of(text, kind):
    """The text without its comments and strings, line for line."""
    return kind.sub(lambda found: "\n" * found.group(0).count("\n") or " ", text)


def prose_of(text, kind):
    """The text with nothing but its comments and strings, line for line."""
    if kind is None:
        return text
    kept, end = [], 0
    for found in kind.finditer(text):
        kept.append("\n" * text.count("\n", end, found.start()) or " ")
        kept.append("" if found.groupdict().get("char") else found.group(0))
        end = found.end()
    return "".join(kept) + "\n" * text.count("\n", end)


def bad_identifiers(lines, code, mine):
    """(line, identifier, replacement) of each refused identifier of a file, at the first line that is not excused."""
    seen = set()
    for number, line in enumerate(code.split("\n"), 1):
        for name in IDENTIFIER.findall(line):
            if name in seen:
                continue
            write = refusal_of(name)
            if write is None:
                seen.add(name)
            elif not any(excuse.search(lines[number - 1]) for excuse in mine):
                seen.add(name)
                yield number, name, write


@functools.cache
def refusal_of(name):
    """What to write instead of an identifier; None if it may stay."""
    parts = PARTS.findall(name)
    joined = f"_{'_'.join(parts).lower()}_"
    rules = IDENTIFIERS_AND_SENTENCES + (IDENTIFIERS if len(parts) < SENTENCE_PARTS else [])
    wrong = next((write for pattern, write in rules if re.search(pattern, joined)), None)
    if wrong is None and name.isupper():
        wrong = next((write for pattern, write in CONSTANTS if re.search(pattern, name)), None)
    return wrong


def clauses(lines):
    """(line, beginning, replacement) of each documented item that begins with a clause."""
    is_documented = False
    for number, line in enumerate(lines, 1):
        found = None if is_documented else CLAUSE.match(line)
        if found:
            yield number, found.group(1), 'a noun: "Precision of …", "Number of …"'
        is_documented = bool(DOCUMENTED.match(line))


def starts_of(text):
    """Where each line of a text starts."""
    return [0] + [found.end() for found in re.finditer("\n", text)]


def findings(name, text, allowed=(), kind=False):
    """(line, found, replacement) of one file, line by line."""
    kind = kind if kind is not False else KINDS[Path(name).suffix]
    mine = [pattern for glob, pattern in allowed if fnmatch.fnmatch(name, glob)]
    lines = text.split("\n")
    found = []
    # Inside of a code block of a Markdown text.
    is_block = False
    for number, line in enumerate(lines, 1):
        is_block ^= name.endswith(".md") and line.lstrip().startswith("```")
        if len(line) > MAX_COLUMNS and not is_block and not NOT_WRAPPED.search(line):
            found.append((number, f"{len(line)} columns", f"at most {MAX_COLUMNS}"))
    # A pattern goes through the whole text at once; none of them matches across lines.
    searched = {scope: (part, part.translate(LOWER), starts_of(part))
                for scope, part in ((PROSE, prose_of(text, kind)), (EVERYWHERE, text))}
    assert len(searched[PROSE][2]) == len(lines), f"{name}: the prose has other lines than the text"
    for pattern, write, scope in COMPILED:
        part, lowered, starts = searched[scope]
        for match in pattern.finditer(lowered):
            number = bisect.bisect_right(starts, match.start())
            if not any(excuse.search(lines[number - 1]) for excuse in mine):
                found.append((number, part[match.start():match.end()], write))
    if name.endswith(WITH_IDENTIFIERS):
        found.extend(bad_identifiers(lines, code_of(text, kind), mine))
    if any(fnmatch.fnmatch(name, glob) for glob in NOUNS_FIRST):
        found.extend(each for each in clauses(lines)
                     if not any(excuse.search(lines[each[0] - 1]) for excuse in mine))
    return sorted(found, key=lambda each: each[0])


def files_below(paths):
    listed = subprocess.run(["git", "-C", str(paths_root(paths)), "ls-files", "--cached", "--others",
                             "--exclude-standard", "-z",
                             "--", *[str(Path(path).resolve()) for path in paths]], check=True, capture_output=True,
                             text=True)
    return [name for name in listed.stdout.split("\0") if name]


def paths_root(paths):
    """The top of the checkout that holds the paths, which may be another one than this script's."""
    first = Path(paths[0]).resolve()
    at = first if first.is_dir() else first.parent
    return Path(subprocess.run(["git", "-C", str(at), "rev-parse", "--show-toplevel"], check=True, capture_output=True,
                               text=True).stdout.strip())


def main():
    if any(argument in ("-h", "--help") for argument in sys.argv[1:]):
        print(__doc__)
        return
    paths = sys.argv[1:] or [str(ROOT)]
    root = paths_root(paths)
    ledger = root / "scripts/words_allowed.txt"
    allowed = allowed_of((ledger if ledger.exists()
                          else ROOT / "scripts/words_allowed.txt").read_text(encoding="utf-8"))
    total = 0
    for name in files_below(paths):
        path = root / name
        kind = kind_of(path)
        if kind is False or not path.is_file() or any(fnmatch.fnmatch(name, glob) for glob in NOT_READ):
            continue
        for number, what, write in findings(name, path.read_text(encoding="utf-8"), allowed, kind):
            total += 1
            print(f'{name}:{number}: "{what}": write {write}')
    print(f"{total} findings")
    sys.exit(1 if total else 0)


if __name__ == "__main__":
    main()
