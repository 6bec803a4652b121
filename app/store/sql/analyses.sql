-- moment: the first statement of a snapshot: what is committed by now is seen, and nothing later
SELECT clock_timestamp()

-- fingerprints: the next distinct fingerprints from one on, with the number of documents of each: eight and four bytes
-- each, one behind the other, since a row each would take five times as long to read
SELECT coalesce(string_agg(int8send(simhash) || int4send(documents), ''::bytea ORDER BY simhash), '')
FROM (SELECT simhash, count(*)::int AS documents FROM document
      WHERE collection_id = %(collection_id)s::int AND simhash >= %(start)s::bigint
      GROUP BY simhash ORDER BY simhash LIMIT %(limit)s::int) f

-- others: how many documents have no fingerprint; how many contents several documents share, and how many those are
SELECT (SELECT count(*) FROM document WHERE collection_id = %(collection_id)s::int AND simhash IS NULL) AS too_short,
       count(*) AS groups, coalesce(sum(documents), 0)::bigint AS exact_duplicated
FROM (SELECT count(*) AS documents FROM document
      WHERE collection_id = %(collection_id)s::int AND content_hash IS NOT NULL
      GROUP BY content_hash HAVING count(*) > 1) g

-- ranking: the given fingerprints in the order of their preferred documents, as numbers from 0 of four bytes each
SELECT coalesce(string_agg(int4send((number - 1)::int), ''::bytea ORDER BY {order}), '')
FROM unnest(%(simhashes)b::bigint[]) WITH ORDINALITY q (simhash, number)
CROSS JOIN LATERAL (
    SELECT key, words, created_at FROM document
    WHERE collection_id = %(collection_id)s::int AND simhash = q.simhash
    ORDER BY {order} LIMIT 1) d

-- preferred: the key of the preferred document of each of the given fingerprints, in their order
SELECT d.key
FROM unnest(%(simhashes)b::bigint[]) WITH ORDINALITY q (simhash, number)
CROSS JOIN LATERAL (
    SELECT key FROM document
    WHERE collection_id = %(collection_id)s::int AND simhash = q.simhash
    ORDER BY {order} LIMIT 1) d
ORDER BY q.number

-- add: an analysis, complete when its transaction commits
INSERT INTO analysis (id, collection_id, against_id, threshold, moment, result)
VALUES (%(id)s::int, %(collection_id)s::int, %(against_id)s::int, %(threshold)s::smallint, %(moment)s::timestamptz,
        %(result)s::jsonb)

-- add_block: a part of an array
INSERT INTO analysis_block (analysis_id, kind, number, numbers)
VALUES (%(id)s::int, %(kind)s::text, %(number)s::int, %(numbers)s::bytea)

-- add_differing: documents of a collection that aren't in the earlier one under the same key with the same content
INSERT INTO analysis_difference (analysis_id, key, status, distance, counterpart)
SELECT %(id)s::int, d.key,
       CASE WHEN e.key IS NOT NULL AND bit_count((d.simhash # e.simhash)::bit(64)) <= %(threshold)s::int
                THEN 'nearly_unchanged'
            WHEN e.key IS NOT NULL THEN 'changed'
            WHEN c.same_content IS NOT NULL OR (c.same_fingerprint IS NOT NULL AND d.content_hash IS NULL)
                THEN 'unchanged'
            WHEN c.same_fingerprint IS NOT NULL OR n.simhash IS NOT NULL THEN 'nearly_unchanged'
            ELSE 'new' END,
       CASE WHEN e.key IS NOT NULL THEN bit_count((d.simhash # e.simhash)::bit(64))
            WHEN c.same_content IS NOT NULL OR c.same_fingerprint IS NOT NULL THEN 0
            ELSE n.distance::smallint END,
       CASE WHEN e.key IS NOT NULL THEN e.key
            ELSE coalesce(c.same_content, c.same_fingerprint, (
                SELECT key FROM document
                WHERE collection_id = %(against_id)s::int AND simhash = n.other ORDER BY key LIMIT 1)) END
FROM document d
LEFT JOIN document e ON e.collection_id = %(against_id)s::int AND e.key = d.key
LEFT JOIN unnest(%(simhashes)b::bigint[], %(others)b::bigint[], %(distances)b::bigint[]) n (simhash, other, distance)
       ON n.simhash = d.simhash
CROSS JOIN LATERAL (
    SELECT (SELECT key FROM document
            WHERE collection_id = %(against_id)s::int AND content_hash = d.content_hash AND e.key IS NULL
            ORDER BY key LIMIT 1) AS same_content,
           (SELECT key FROM document
            WHERE collection_id = %(against_id)s::int AND simhash = d.simhash AND e.key IS NULL
            ORDER BY key LIMIT 1) AS same_fingerprint) c
WHERE d.collection_id = %(collection_id)s::int
  AND (e.key IS NULL OR (d.content_hash, d.simhash) IS DISTINCT FROM (e.content_hash, e.simhash))

-- add_gone: documents of the earlier collection whose key and content, or anything near it, aren't in the later one
INSERT INTO analysis_difference (analysis_id, key, status)
SELECT %(id)s::int, e.key, 'gone'
FROM document e
LEFT JOIN unnest(%(simhashes)b::bigint[]) n (simhash) ON n.simhash = e.simhash
WHERE e.collection_id = %(against_id)s::int AND n.simhash IS NULL
  AND NOT EXISTS (SELECT FROM document d WHERE d.collection_id = %(collection_id)s::int AND d.key = e.key)
  AND NOT EXISTS (
      SELECT FROM document d WHERE d.collection_id = %(collection_id)s::int AND d.content_hash = e.content_hash)
  AND NOT EXISTS (SELECT FROM document d WHERE d.collection_id = %(collection_id)s::int AND d.simhash = e.simhash)

-- count_differences: by status and distance
SELECT status, distance, count(*) FROM analysis_difference WHERE analysis_id = %(id)s::int GROUP BY status, distance

-- documents: how many there are
SELECT count(*) FROM document WHERE collection_id = %(collection_id)s::int

-- finished: what an analysis has found that was broken off between this and the end of its operation
SELECT result FROM analysis WHERE id = %(id)s::int

-- base: the latest analysis whose pairs hold all that are within a threshold
SELECT a.id, a.threshold, (a.result ->> 'pairs')::bigint AS pairs
FROM analysis a JOIN operation o ON o.id = a.id AND o.status = 'succeeded'
WHERE a.collection_id = %(collection_id)s::int AND a.against_id IS NULL AND a.threshold >= %(threshold)s::int
ORDER BY a.moment DESC
LIMIT 1

-- numbered: the fingerprints of an analysis by their numbers, eight bytes each
SELECT coalesce(string_agg(int8send(simhash), ''::bytea ORDER BY number), '')
FROM analysis_fingerprint WHERE analysis_id = %(id)s::int

-- blocks: the next parts of an array
SELECT number, numbers FROM analysis_block
WHERE analysis_id = %(id)s::int AND kind = %(kind)s::text AND number >= %(number)s::int
ORDER BY number
LIMIT %(limit)s::int

-- latest: the moment and the threshold of the latest analysis of a collection
SELECT a.id FROM analysis a JOIN operation o ON o.id = a.id AND o.status = 'succeeded'
WHERE a.collection_id = %(collection_id)s::int AND a.against_id IS NULL
ORDER BY a.moment DESC
LIMIT 1

-- clusters: the next clusters, each with some of its members
SELECT c.number, c.fingerprints, c.documents, c.diameter, c.diameter_is_exact, c.representative,
       array_agg(m.key ORDER BY m.number, m.key), array_agg(m.simhash ORDER BY m.number, m.key),
       array_agg(m.distance ORDER BY m.number, m.key)
FROM (SELECT c.*, a.collection_id, a.moment FROM analysis_cluster c JOIN analysis a ON a.id = c.analysis_id
      WHERE c.analysis_id = %(id)s::int AND c.number > %(after)s::int
      ORDER BY c.number LIMIT %(limit)s::int) c
LEFT JOIN LATERAL (
    SELECT f.number, f.simhash, f.distance, d.key
    FROM analysis_fingerprint f
    CROSS JOIN LATERAL (
        SELECT key FROM document
        WHERE collection_id = c.collection_id AND simhash = f.simhash AND created_at <= c.moment
        ORDER BY key LIMIT %(members)s::int) d
    WHERE f.analysis_id = %(id)s::int AND f.number >= c.first AND f.number < c.first + c.fingerprints
    ORDER BY f.number, d.key LIMIT %(members)s::int) m ON true
GROUP BY c.number, c.fingerprints, c.documents, c.diameter, c.diameter_is_exact, c.representative
ORDER BY c.number

-- cluster: one cluster
SELECT first, fingerprints FROM analysis_cluster WHERE analysis_id = %(id)s::int AND number = %(number)s::int

-- members: the next documents of a range of fingerprints, in the order of those. Each fingerprint asks for its own next
-- documents, in the order of an index: a page costs what it holds, however many documents share a fingerprint
SELECT f.number, f.cluster, c.representative, f.simhash, f.distance,
       CASE WHEN f.documents > 1 THEN 0 ELSE f.nearest END AS nearest, d.key,
       EXISTS (SELECT FROM document e
               WHERE e.collection_id = a.collection_id AND e.content_hash = d.content_hash AND e.key <> d.key
                 AND e.created_at <= a.moment) AS exact
FROM analysis a
JOIN analysis_fingerprint f ON f.analysis_id = a.id
CROSS JOIN LATERAL (
    SELECT key, content_hash FROM document
    WHERE collection_id = a.collection_id AND simhash = f.simhash AND created_at <= a.moment
      AND key > CASE WHEN f.number = %(number)s::int THEN %(after)s::text ELSE '' END
    ORDER BY key LIMIT %(limit)s::int) d
JOIN analysis_cluster c ON c.analysis_id = a.id AND c.number = f.cluster
WHERE a.id = %(id)s::int AND f.number >= %(number)s::int AND f.number < %(end)s::int
ORDER BY f.number, d.key
LIMIT %(limit)s::int

-- without_fingerprint: documents that have none and share their content with another one
SELECT d.key
FROM analysis a JOIN document d ON d.collection_id = a.collection_id
WHERE a.id = %(id)s::int AND d.simhash IS NULL AND d.key > %(after)s::text AND d.created_at <= a.moment
  AND EXISTS (SELECT FROM document e
              WHERE e.collection_id = a.collection_id AND e.content_hash = d.content_hash AND e.key <> d.key
                AND e.created_at <= a.moment)
ORDER BY d.key
LIMIT %(limit)s::int

-- described: fingerprints by their numbers, each with some of its documents
SELECT f.number, f.simhash, f.documents,
       ARRAY(SELECT key FROM document
             WHERE collection_id = a.collection_id AND simhash = f.simhash AND created_at <= a.moment
             ORDER BY key LIMIT %(keys)s::int) AS keys
FROM analysis a JOIN analysis_fingerprint f ON f.analysis_id = a.id
WHERE a.id = %(id)s::int AND f.number = ANY(%(numbers)b::int[])

-- differences: the next documents that differ, of one status or of all
SELECT key, status, distance, counterpart FROM analysis_difference
WHERE analysis_id = %(id)s::int AND key > %(after)s::text
  AND (status = %(status)s::text OR %(status)s::text IS NULL)
ORDER BY key
LIMIT %(limit)s::int

-- unchanged: the next documents with the same content as before
SELECT d.key, 'unchanged', 0, coalesce(u.counterpart, d.key)
FROM analysis a
JOIN document d ON d.collection_id = a.collection_id AND d.created_at <= a.moment
LEFT JOIN analysis_difference u ON u.analysis_id = a.id AND u.key = d.key
WHERE a.id = %(id)s::int AND d.key > %(after)s::text AND (u.key IS NULL OR u.status = 'unchanged')
ORDER BY d.key
LIMIT %(limit)s::int

-- flagged: of the next documents of a collection those that an analysis has flagged, or has not, as many as are wanted;
-- the last one is where the next part begins
WITH next AS MATERIALIZED (
    SELECT key, simhash, content_hash, words, metadata, created_at, updated_at FROM document
    WHERE collection_id = %(collection_id)s::int AND key > %(after)s::text
    ORDER BY key
    LIMIT %(read)s::int)
SELECT key, simhash, content_hash, words, metadata, created_at, updated_at
FROM next
WHERE EXISTS (SELECT FROM analysis_fingerprint f WHERE f.analysis_id = %(id)s::int AND f.simhash = next.simhash)
      = %(flagged)s::boolean
ORDER BY key
LIMIT %(limit)s::int

-- after: the last of the next documents of a collection, if there may be more behind them
SELECT CASE WHEN count(*) = %(read)s::int THEN max(key) END FROM (
    SELECT key FROM document
    WHERE collection_id = %(collection_id)s::int AND key > %(after)s::text
    ORDER BY key
    LIMIT %(read)s::int) next

-- orphans: what an analysis has found that there isn't any more, or that didn't succeed
SELECT id FROM analysis a
WHERE NOT EXISTS (SELECT FROM operation o WHERE o.id = a.id AND o.status IN ('queued', 'running', 'succeeded'))
ORDER BY id

-- lock_orphan: one of them, unless another session purges it
SELECT FROM analysis WHERE id = %(id)s::int FOR UPDATE SKIP LOCKED

-- purge_fingerprints: some of an orphan's rows
DELETE FROM analysis_fingerprint f USING (
    SELECT number FROM analysis_fingerprint WHERE analysis_id = %(id)s::int ORDER BY number LIMIT %(limit)s::int) n
WHERE f.analysis_id = %(id)s::int AND f.number = n.number

-- purge_clusters: some of an orphan's rows
DELETE FROM analysis_cluster c USING (
    SELECT number FROM analysis_cluster WHERE analysis_id = %(id)s::int ORDER BY number LIMIT %(limit)s::int) n
WHERE c.analysis_id = %(id)s::int AND c.number = n.number

-- purge_differences: some of an orphan's rows
DELETE FROM analysis_difference d USING (
    SELECT key FROM analysis_difference WHERE analysis_id = %(id)s::int ORDER BY key LIMIT %(limit)s::int) n
WHERE d.analysis_id = %(id)s::int AND d.key = n.key

-- purge_blocks: some of an orphan's rows
DELETE FROM analysis_block b USING (
    SELECT kind, number FROM analysis_block WHERE analysis_id = %(id)s::int ORDER BY kind, number LIMIT %(limit)s::int) n
WHERE b.analysis_id = %(id)s::int AND b.kind = n.kind AND b.number = n.number

-- forget: an orphan whose rows are gone
DELETE FROM analysis WHERE id = %(id)s::int
