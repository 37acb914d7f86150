"""Text written by a target: files, checks, batches.

A corpus is a folder of `.npz` files (or `.npz.xz`), or one file. Each holds `tokens` (all conversations end to end),
`lens` and `plen` (tokens of each conversation, and of its prompt), `temp` (temperature it was written at) and `src`
(kind of prompt). Files written here also name the target.
"""

from __future__ import annotations

import io
import lzma
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dflash_lab.core.data.prompts import DATASET_NAMES, load_prompts
from dflash_lab.core.errors import DataError
from dflash_lab.core.target.text import Text

ASSETS = Path(__file__).parents[2] / "assets"
SLICE = ASSETS / "corpus-slice.npz"
HELD_OUT = ASSETS / "held-out-greedy.npz"
HELD_OUT_FLOAT32 = ASSETS / "held-out-greedy-float32.npz"
"""What the target writes in float32 after the first prompts of each set, and for some tokens beyond the end."""
KEYS = ("tokens", "lens", "plen", "temp", "src")
NGRAM = 13
"""Words in a row that two prompts may not share: the length used to clean training sets since GPT-3."""


@dataclass(frozen=True)
class Corpus:
    """Conversations, each a prompt and the target's answer."""

    tokens: np.ndarray
    """`[total]` uint16 or uint32 token ids, end to end."""
    lengths: np.ndarray
    """`[n]` int64 tokens of each conversation."""
    prompt_lengths: np.ndarray
    """`[n]` int64 tokens of each prompt, template included."""
    temperatures: np.ndarray
    """`[n]` float32; 0 is greedy."""
    sources: np.ndarray
    """`[n]` strings: kind of prompt, or name of the set."""
    target: str = ""
    """Name of the target that wrote it; empty if the files do not say."""

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def starts(self) -> np.ndarray:
        """`[n]` int64 position of each conversation in `tokens`."""
        return np.cumsum(self.lengths) - self.lengths

    def conversation(self, index: int) -> np.ndarray:
        """Token ids of one conversation."""
        start = int(self.lengths[:index].sum())
        return self.tokens[start : start + self.lengths[index]]

    def prompts(self) -> Iterator[np.ndarray]:
        """Token ids of each prompt, template included."""
        for start, length in zip(self.starts, self.prompt_lengths, strict=True):
            yield self.tokens[start : start + length]

    def select(self, keep: np.ndarray) -> Corpus:
        """Only the conversations of an index or a mask."""
        mask = np.zeros(len(self), dtype=bool)
        mask[keep] = True
        return Corpus(
            self.tokens[np.repeat(mask, self.lengths)],
            *(values[mask] for values in (self.lengths, self.prompt_lengths, self.temperatures, self.sources)),
            target=self.target,
        )

    def save(self, path: Path) -> None:
        """Write one compressed `.npz`, whole or not at all."""
        partial = path.with_name(f".{path.name}.part")
        with open(partial, "wb") as sink:
            np.savez_compressed(
                sink,
                tokens=self.tokens,
                lens=self.lengths.astype(np.uint16),
                plen=self.prompt_lengths.astype(np.uint16),
                temp=self.temperatures.astype(np.float16),
                src=self.sources,
                target=np.array(self.target),
            )
        partial.replace(path)


def join(parts: Sequence[Corpus]) -> Corpus:
    """Corpora of one target end to end."""
    names = {part.target for part in parts if part.target}
    if len(names) > 1:
        raise DataError(f"the corpus was written by different targets ({', '.join(sorted(names))}); keep one")
    arrays = (
        [getattr(part, name) for part in parts]
        for name in ("tokens", "lengths", "prompt_lengths", "temperatures", "sources")
    )
    return Corpus(*(np.concatenate(values) for values in arrays), target=next(iter(names), ""))


def load_corpus(path: Path) -> Corpus:
    """All conversations of a folder or a file. Raises DataError, one line, naming the file."""
    files = [path] if path.is_file() else sorted((*path.glob("corpus*.npz"), *path.glob("corpus*.npz.xz")))
    if not files:
        raise DataError(f"no corpus in {path}: expected a folder with corpus*.npz files, or one .npz file")
    return join([_read(file) for file in files])


def _read(file: Path) -> Corpus:
    try:
        raw = lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes()
        with np.load(io.BytesIO(raw), allow_pickle=False) as data:
            arrays = {key: data[key] for key in data.files}
    except (OSError, ValueError, EOFError, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise DataError(f"{file} is not a readable .npz file ({error}): write it again") from None
    missing = [key for key in ("tokens", "lens", "plen") if key not in arrays]
    if missing:
        raise DataError(f"{file} has no {', '.join(missing)}: a corpus file holds {', '.join(KEYS)}")
    lengths, prompts = arrays["lens"].astype(np.int64), arrays["plen"].astype(np.int64)
    if lengths.sum() != len(arrays["tokens"]) or len(prompts) != len(lengths) or (prompts > lengths).any():
        raise DataError(f"{file} is damaged: its lengths do not add up to its {len(arrays['tokens'])} tokens")
    count = len(lengths)
    return Corpus(
        arrays["tokens"],
        lengths,
        prompts,
        arrays.get("temp", np.zeros(count)).astype(np.float32),
        arrays.get("src", arrays.get("names", np.full(count, ""))),
        str(arrays.get("target", "")),
    )


def check_target(corpus: Corpus, text: Text, vocab_size: int, name: str) -> None:
    """Refuse a corpus that this target cannot have written.

    Every prompt must begin and end as the target's chat template does, and every token must be in its vocabulary.
    """
    if corpus.target and corpus.target != name:
        raise DataError(f"the corpus was written by {corpus.target}, the target is {name}: write one with it")
    if len(corpus) and int(corpus.tokens.max()) >= vocab_size:
        raise DataError(
            f"the corpus holds token {int(corpus.tokens.max())}, the target has {vocab_size}: it is another target's"
        )
    head, tail = template_ends(text)
    for index, prompt in enumerate(corpus.prompts()):
        if prompt[: len(head)].tolist() != head or prompt[len(prompt) - len(tail) :].tolist() != tail:
            raise DataError(
                f"prompt {index} of the corpus does not follow the chat template of {name}: it is another target's"
            )


def template_ends(text: Text) -> tuple[list[int], list[int]]:
    """Token ids that the chat template puts before and after a user's turn. Raises TargetError without a template."""
    first, second = (text.encode(word)[0] for word in ("alpha", "beta"))
    head = 0
    while first[head] == second[head]:
        head += 1
    tail = 0
    while first[-1 - tail] == second[-1 - tail]:
        tail += 1
    return first[:head], first[len(first) - tail :]


def evaluation_texts(text: Text, held_out: Corpus) -> tuple[list[str], tuple[str, ...]]:
    """The prompts that must not be trained on, and the names of the sets that are here whole.

    Sets that cannot be had (no folder, no hub) count with the prompts that have held-out text.
    """
    found, whole = [text.decode(prompt.tolist()) for prompt in user_turns(held_out, text)], []
    for name in DATASET_NAMES:
        try:
            found += [prompt.text for prompt in load_prompts(name).prompts]
            whole.append(name)
        except DataError:
            continue
    return found, tuple(whole)


def user_turns(corpus: Corpus, text: Text) -> Iterator[np.ndarray]:
    """Token ids of each user's turn, without the template."""
    head, tail = map(len, template_ends(text))
    for prompt in corpus.prompts():
        yield prompt[head : len(prompt) - tail]


class Overlap:
    """Tells whether a prompt is one of the evaluation's, by normalised text and by words in a row.

    Lines that several evaluation prompts share are instructions around the problem; they do not count.
    """

    def __init__(self, evaluation: Iterable[str]) -> None:
        evaluation = set(evaluation)
        lines = Counter(line for text in evaluation for line in set(text.split("\n")))
        self._instructions = {line for line, count in lines.items() if count > 1}
        problems = [self._problem(text) for text in evaluation]
        self._texts = {" ".join(words) for words in problems}
        self._grams = {gram for words in problems for gram in _ngrams(words)}

    def __contains__(self, prompt: str) -> bool:
        words = self._problem(prompt)
        return " ".join(words) in self._texts or not self._grams.isdisjoint(_ngrams(words))

    def _problem(self, prompt: str) -> list[str]:
        lines = (line for line in prompt.split("\n") if line not in self._instructions)
        return re.findall(r"\w+", "\n".join(lines).lower())


def _ngrams(words: list[str]) -> Iterator[str]:
    return (" ".join(words[start : start + NGRAM]) for start in range(len(words) - NGRAM + 1))


def overlapping(corpus: Corpus, text: Text, evaluation: Overlap) -> np.ndarray:
    """`[n]` bool: conversations whose prompt is one of the evaluation's."""
    return np.array([text.decode(turn.tolist()) in evaluation for turn in user_turns(corpus, text)], dtype=bool)


def refuse_evaluation(corpus: Corpus, text: Text, evaluation: Overlap) -> None:
    """Raise DataError if a prompt of the corpus is one of the evaluation's."""
    found = np.flatnonzero(overlapping(corpus, text, evaluation))
    if len(found):
        raise DataError(
            f"{len(found)} prompts of the corpus are evaluation prompts (the first is number {found[0]}), and would be "
            "measured from memory: `dflash-lab train corpus --corpus` writes a copy without them"
        )


def epoch_batches(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> np.ndarray:
    """Order of one epoch, `[batches, batch_size]`: random, with texts of like length in a batch; a rest is left out.

    A batch is as wide as its longest text, so texts are sorted by length inside pools of many batches.
    """
    random = np.random.default_rng((seed, epoch))
    count = len(lengths) // batch_size
    if not count:
        raise DataError(f"the corpus has {len(lengths)} texts, a step needs {batch_size}: lower --batch-size")
    order = random.permutation(len(lengths))[: count * batch_size]
    pool = 64 * batch_size
    order = np.concatenate(
        [part[np.argsort(lengths[part], kind="stable")] for part in np.split(order, range(pool, len(order), pool))]
    )
    return random.permutation(order.reshape(count, batch_size))
