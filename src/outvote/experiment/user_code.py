"""Files that rules and attacks of one's own come from: they change a result, so they are hashed."""

import hashlib
import re
from pathlib import Path

PLACE = re.compile(r"[^\s(),='\"][^(),='\"]*\.py(?=:\w)")


def digests(*texts: str) -> dict[str, str]:
    """Return the checksum of every file that is named in specs such as "gas(mine.py:MyRule)"."""
    places = sorted({place for text in texts for place in PLACE.findall(text)})
    return {
        place: hashlib.blake2b(Path(place).read_bytes(), digest_size=16).hexdigest()
        for place in places
        if Path(place).is_file()
    }
