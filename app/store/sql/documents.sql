-- lock: shared, so writes don't wait for one another; a change of layouts or a deletion of the collection does
SELECT pg_advisory_xact_lock_shared(%(layouts)s::bigint),
       pg_advisory_xact_lock_shared(%(collections)s::int, %(collection_id)s::int)

-- guard: what the write relies on, seen by a snapshot younger than the lock
SELECT array(SELECT id FROM band_layout ORDER BY id) AS layouts,
       array(SELECT coalesce(ttl, 0) FROM collection WHERE id = %(collection_id)s::int) AS ttl

-- upsert: no row comes back, and nothing was written, where the stored document has the same content
INSERT INTO document AS stored (collection_id, key, content_hash, simhash, bits, words, text, metadata)
SELECT %(collection_id)s::int, %(key)s::text, %(content_hash)s::bytea, %(simhash)s::bigint, %(bits)s::smallint,
       %(words)s::int, %(text)s::text, coalesce(%(metadata)s::jsonb, '{}')
WHERE NOT EXISTS (
    SELECT FROM document
    WHERE collection_id = %(collection_id)s::int AND key = %(key)s::text
      -- A text that has no hash is compared itself.
      AND (content_hash, simhash, words, metadata, CASE WHEN content_hash IS NULL THEN text END)
          IS NOT DISTINCT FROM
          (%(content_hash)s::bytea, %(simhash)s::bigint, %(words)s::int, coalesce(%(metadata)s::jsonb, metadata),
           CASE WHEN %(content_hash)s::bytea IS NULL THEN %(text)s::text END)
      AND NOT (text IS NULL AND %(text)s::text IS NOT NULL))
ON CONFLICT (collection_id, key) DO UPDATE
SET content_hash = excluded.content_hash, simhash = excluded.simhash, bits = excluded.bits, words = excluded.words,
    text = excluded.text, metadata = coalesce(%(metadata)s::jsonb, stored.metadata), updated_at = now(),
    seen_at = now(),
    content_at = CASE WHEN (stored.content_hash, stored.simhash) IS DISTINCT FROM (excluded.content_hash, excluded.simhash)
                      THEN now() ELSE stored.content_at END
WHERE (stored.content_hash, stored.simhash, stored.words, stored.metadata,
       CASE WHEN stored.content_hash IS NULL THEN stored.text END)
      IS DISTINCT FROM
      (excluded.content_hash, excluded.simhash, excluded.words, coalesce(%(metadata)s::jsonb, stored.metadata),
       CASE WHEN excluded.content_hash IS NULL THEN excluded.text END)
   OR (stored.text IS NULL AND excluded.text IS NOT NULL)
RETURNING xmax = 0 AS created

-- touch: that a document was seen, unless that is known already, closely enough
UPDATE document SET seen_at = now()
WHERE collection_id = %(collection_id)s::int AND key = %(key)s::text
  AND seen_at < now() - make_interval(secs => %(seen_seconds)s::float)

-- insert_many: those that are new, in the order in which they are given; the others are locked, whatever they hold, and
-- don't come back
INSERT INTO document AS stored (collection_id, key, content_hash, simhash, bits, words, text, metadata)
SELECT %(collection_id)s::int, d.key, d.content_hash, d.simhash, %(bits)s::smallint, d.words, d.text,
       coalesce(d.metadata, '{}')
FROM unnest(%(keys)b::text[], %(content_hashes)b::bytea[], %(simhashes)b::bigint[], %(words)b::int[],
            %(texts)b::text[], %(metadata)b::jsonb[])
     WITH ORDINALITY d (key, content_hash, simhash, words, text, metadata, number)
ORDER BY d.number
ON CONFLICT (collection_id, key) DO UPDATE SET seen_at = stored.seen_at WHERE false
RETURNING key

-- compare_many: of those that are stored each that differs from what is given, or was last seen so long ago that it must
-- be noted; whether it differs. Without a text nothing is known of one that has no hash
SELECT s.key, compared.differs
FROM unnest(%(keys)b::text[], %(content_hashes)b::bytea[], %(simhashes)b::bigint[], %(words)b::int[],
            %(texts_without_hash)b::text[], %(with_text)b::boolean[], %(metadata)b::jsonb[])
     d (key, content_hash, simhash, words, text_without_hash, with_text, metadata)
JOIN document s ON s.collection_id = %(collection_id)s::int AND s.key = d.key
CROSS JOIN LATERAL (
    SELECT (s.content_hash, s.simhash, s.words, s.metadata,
            CASE WHEN s.content_hash IS NULL AND d.text_without_hash IS NOT NULL THEN s.text END)
           IS DISTINCT FROM
           (d.content_hash, d.simhash, d.words, coalesce(d.metadata, s.metadata), d.text_without_hash)
           OR (s.text IS NULL AND d.with_text) AS differs
) compared
WHERE compared.differs OR s.seen_at < now() - make_interval(secs => %(seen_seconds)s::float)

-- update_many: those that are locked and differ. Of the same content a text stays that nobody gives again
UPDATE document s
SET content_hash = d.content_hash, simhash = d.simhash, bits = %(bits)s::smallint, words = d.words,
    text = CASE WHEN (s.content_hash, s.simhash, s.words) IS NOT DISTINCT FROM (d.content_hash, d.simhash, d.words)
                THEN coalesce(d.text, s.text) ELSE d.text END,
    metadata = coalesce(d.metadata, s.metadata), updated_at = now(), seen_at = now(),
    content_at = CASE WHEN (s.content_hash, s.simhash) IS DISTINCT FROM (d.content_hash, d.simhash)
                      THEN now() ELSE s.content_at END
FROM unnest(%(keys)b::text[], %(content_hashes)b::bytea[], %(simhashes)b::bigint[], %(words)b::int[],
            %(texts)b::text[], %(metadata)b::jsonb[])
     d (key, content_hash, simhash, words, text, metadata)
WHERE s.collection_id = %(collection_id)s::int AND s.key = d.key

-- touch_many: those that are locked and don't differ were seen
UPDATE document SET seen_at = now()
WHERE collection_id = %(collection_id)s::int AND key = ANY(%(keys)b::text[])

-- digests: what is known of documents by their keys; or of those alone whose texts are stored: nobody else has made them
SELECT key, simhash, content_hash, words FROM document
WHERE collection_id = %(collection_id)s::int AND key = ANY(%(keys)b::text[])
  AND (text IS NOT NULL OR NOT %(of_texts)s::boolean)
  AND EXISTS (SELECT FROM collection WHERE id = %(collection_id)s::int)

-- get: one document
SELECT key, simhash, content_hash, words, metadata, created_at, updated_at
FROM document
WHERE collection_id = %(collection_id)s::int AND key = %(key)s::text
  AND EXISTS (SELECT FROM collection WHERE id = %(collection_id)s::int)

-- page: documents after a key, in the order of their keys
SELECT key, simhash, content_hash, words, metadata, created_at, updated_at
FROM document
WHERE collection_id = %(collection_id)s::int AND key > %(after)s::text
  AND EXISTS (SELECT FROM collection WHERE id = %(collection_id)s::int)
ORDER BY key
LIMIT %(limit)s::int

-- sizes: the number of distinct fingerprints of each collection, the largest first
SELECT collection_id, count(*)
FROM (SELECT DISTINCT collection_id, simhash FROM document WHERE simhash IS NOT NULL) d
GROUP BY collection_id
HAVING EXISTS (SELECT FROM collection c WHERE c.id = d.collection_id)
ORDER BY count(*) DESC, collection_id

-- sample: about one in `one_in` fingerprints of a collection, another choice for each `seed`. By a hash, since any other
-- way of choosing some without reading all prefers some: neighbours in an index are alike
SELECT DISTINCT simhash FROM document
WHERE collection_id = %(collection_id)s::int AND simhash IS NOT NULL
  AND hashint8extended(simhash, %(seed)s::bigint) & (%(one_in)s::bigint - 1) = 0
LIMIT %(limit)s::int

-- scan: the documents within a threshold, by reading the fingerprints of all; the nearest first
SELECT key, simhash, bit_count((simhash # %(simhash)s::bigint)::bit(64)) AS distance
FROM document
WHERE collection_id = %(collection_id)s::int
  AND bit_count((simhash # %(simhash)s::bigint)::bit(64)) <= %(threshold)s::int
ORDER BY distance, simhash < 0, simhash, key
LIMIT %(limit)s::int

-- delete: one document; its fingerprint row stays, the join to documents hides it
DELETE FROM document
WHERE collection_id = %(collection_id)s::int AND key = %(key)s::text
  AND EXISTS (SELECT FROM collection WHERE id = %(collection_id)s::int)

-- delete_many: in the order of their keys, so that two of these don't wait for one another
WITH locked AS MATERIALIZED (
    SELECT key FROM document
    WHERE collection_id = %(collection_id)s::int AND key = ANY(%(keys)b::text[])
      AND EXISTS (SELECT FROM collection WHERE id = %(collection_id)s::int)
    ORDER BY key
    FOR UPDATE)
DELETE FROM document d USING locked
WHERE d.collection_id = %(collection_id)s::int AND d.key = locked.key

-- delete_next: of the next `size` documents after a key those that weren't seen since a moment, as long as the collection
-- has this ttl, or all where that is null; the last key of the `size`, and how many went. One that a write holds is being
-- seen
WITH next AS MATERIALIZED (
    SELECT key FROM document
    WHERE collection_id = %(collection_id)s::int AND key > %(after)s::text
    ORDER BY key
    LIMIT %(size)s::int
), locked AS MATERIALIZED (
    SELECT d.key FROM next JOIN document d ON d.collection_id = %(collection_id)s::int AND d.key = next.key
    WHERE %(ttl)s::int IS NULL
       OR (d.seen_at < %(seen_before)s::timestamptz
           AND EXISTS (SELECT FROM collection WHERE id = %(collection_id)s::int AND ttl = %(ttl)s::int))
    ORDER BY d.key
    FOR UPDATE OF d SKIP LOCKED
), deleted AS (
    DELETE FROM document d USING locked
    WHERE d.collection_id = %(collection_id)s::int AND d.key = locked.key
    RETURNING 1
)
SELECT (SELECT max(key) FROM next), (SELECT count(*) FROM deleted)

-- export: the next documents after a key, in the order of their keys: at most `limit`, and only as many as have `bytes`
-- together, but one at least
SELECT key, simhash, content_hash, words, metadata, text
FROM (
    SELECT key, simhash, content_hash, words, metadata, CASE WHEN %(with_text)s::boolean THEN text END AS text,
           sum(octet_length(metadata::text) + CASE WHEN %(with_text)s::boolean THEN coalesce(octet_length(text), 0) ELSE 0 END)
               OVER (ORDER BY key ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
    FROM (SELECT * FROM document
          WHERE collection_id = %(collection_id)s::int AND key > %(after)s::text
            AND EXISTS (SELECT FROM collection WHERE id = %(collection_id)s::int)
          ORDER BY key
          LIMIT %(limit)s::int) following
) d
WHERE coalesce(bytes_before, 0) < %(bytes)s::bigint
ORDER BY key

-- exact_duplicates: documents of the same content, where there is no fingerprint to find them by
SELECT d.key, d.simhash, 0, true, d.metadata
FROM (SELECT FROM collection WHERE id = %(collection_id)s::int AND name = %(collection)s::text) c
LEFT JOIN document d
       ON d.collection_id = %(collection_id)s::int AND d.content_hash = %(content_hash)s::bytea
      AND d.key IS DISTINCT FROM %(except_key)s::text
ORDER BY d.key
LIMIT %(limit)s::int

-- exact_duplicates_of_many: the same for many of one collection; the first of each in the order of the keys
SELECT q.number, m.key, m.simhash, 0, true, m.metadata
FROM (SELECT FROM collection WHERE id = %(collection_id)s::int AND name = %(collection)s::text) c
CROSS JOIN unnest(%(content_hashes)s::bytea[], %(except_keys)s::text[])
    WITH ORDINALITY q (content_hash, except_key, number)
LEFT JOIN LATERAL (
    SELECT key, simhash, metadata FROM document
    WHERE collection_id = %(collection_id)s::int AND content_hash = q.content_hash AND key IS DISTINCT FROM q.except_key
    ORDER BY key
    LIMIT %(limit)s::int) m ON true
ORDER BY q.number, m.key

-- exact_groups: contents that several documents share, those that most have first, after one of them; with some keys
SELECT g.content_hash, g.documents,
       ARRAY(SELECT key FROM document
             WHERE collection_id = %(collection_id)s::int AND content_hash = g.content_hash
             ORDER BY key LIMIT %(keys)s::int)
FROM (SELECT content_hash, count(*) AS documents FROM document
      WHERE collection_id = %(collection_id)s::int AND content_hash IS NOT NULL
        AND EXISTS (SELECT FROM collection WHERE id = %(collection_id)s::int)
      GROUP BY content_hash
      HAVING count(*) > 1
         AND (count(*) < %(documents)s::bigint
              OR (count(*) = %(documents)s::bigint AND content_hash > %(content_hash)s::bytea))
      ORDER BY count(*) DESC, content_hash
      LIMIT %(limit)s::int) g
ORDER BY g.documents DESC, g.content_hash

-- keys_of_content: the next documents of one content
SELECT key FROM document
WHERE collection_id = %(collection_id)s::int AND content_hash = %(content_hash)s::bytea AND key > %(after)s::text
  AND EXISTS (SELECT FROM collection WHERE id = %(collection_id)s::int)
ORDER BY key
LIMIT %(limit)s::int
