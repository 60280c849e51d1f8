"""Our log: one line for each happening, as text or as JSON, on standard error."""

from __future__ import annotations

import json
import logging
import sys
import time


class TextFormatter(logging.Formatter):
    """`2026-11-20T19:00:00.123Z INFO supervision: web: starting -> running (pid 42)`."""

    converter = staticmethod(time.gmtime)
    default_msec_format = "%s.%03dZ"
    default_time_format = "%Y-%m-%dT%H:%M:%S"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """A line break that somebody put into a name makes no second line; the trace of a defect does."""
        text = super().format(record)
        return text if record.exc_info else text.replace("\r", "\\r").replace("\n", "\\n")


class JsonFormatter(TextFormatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up_logging(style: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
