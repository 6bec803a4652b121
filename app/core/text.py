"""Text as the article's PHP class reads it: lower case, cut at ASCII white space."""

from hashlib import blake2b

# What PHP's trim() strips. It leaves \f alone, so a text that starts with "\f\0" keeps the NUL in its first word.
_PHP_TRIM = b" \t\n\r\0\x0b"
_HASH_BYTES = 16


def article_words(text: str) -> list[bytes]:
    """The words of `text` in UTF-8, in order.

    The same as PHP's mb_strtolower(trim($text)), split at white space by a pattern without the /u flag: ASCII white
    space alone, which is what bytes.split() cuts at, so a no-break space stays inside its word. PHP >= 8.3 and
    str.lower() both write the sigma at a word's end as the final form. A lone surrogate, which no UTF-8 text holds,
    becomes "?".
    """
    return text.lower().encode("utf-8", "replace").strip(_PHP_TRIM).split()


def content_hash(words: list[bytes], text: str) -> bytes | None:
    """BLAKE2b-128 of the normalised text (its words, one space between): equal for exact duplicates.

    None where the text has no letter and no digit. Blank and punctuation-only pages have no content that could be
    equal, and grouping every failed extraction of a crawl as "the same page" helps nobody.
    """
    if not any(map(str.isalnum, text)):
        return None
    return blake2b(b" ".join(words), digest_size=_HASH_BYTES).digest()
