"""Server-sent events out of a byte stream, whatever pieces it comes in."""

from __future__ import annotations

import codecs


class EventDecoder:
    """Collects bytes and gives the data of each event as it becomes whole."""

    def __init__(self) -> None:
        self._text = ""
        self._data: list[str] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="strict")

    def feed(self, data: bytes) -> list[str]:
        """The data of the events that `data` completes, in order; comments and other fields are passed over.

        Raises UnicodeDecodeError for bytes that are not UTF-8.
        """
        *lines, self._text = (self._text + self._decoder.decode(data)).split("\n")
        events = []
        for line in (line.removesuffix("\r") for line in lines):
            if line.startswith("data:"):
                self._data.append(line[5:].removeprefix(" "))
            elif not line and self._data:
                events.append("\n".join(self._data))
                self._data = []
        return events

    @property
    def rest(self) -> bool:
        """Whether an event was begun and not ended."""
        return bool(self._data or self._text.strip())
