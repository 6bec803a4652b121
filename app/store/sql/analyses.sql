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

-- add_same_keys: documents that are in both collections under the same key, with another content
INSERT INTO analysis_difference (analysis_id, key, status, distance, counterpart)
SELECT %(id)s::int, d.key, CASE WHEN apart.distance <= %(threshold)s::int THEN 'nearly_unchanged' ELSE 'changed' END,
       apart.distance, d.key
FROM document d
JOIN document e ON e.collection_id = %(against_id)s::int AND e.key = d.key
CROSS JOIN LATERAL (SELECT bit_count((d.simhash # e.simhash)::bit(64))::smallint AS distance) apart
WHERE d.collection_id = %(collection_id)s::int
  AND (d.content_hash, d.simhash) IS DISTINCT FROM (e.content_hash, e.simhash)

-- arrived: documents of the later collection whose key the earlier one doesn't have
CREATE TEMPORARY TABLE arrived ON COMMIT DROP AS
SELECT key, content_hash, simhash, coalesce(content_hash, int8send(simhash)) AS content FROM document d
WHERE collection_id = %(collection_id)s::int
  AND NOT EXISTS (SELECT FROM document e WHERE e.collection_id = %(against_id)s::int AND e.key = d.key)

-- left_behind: documents of the earlier collection whose key the later one doesn't have
CREATE TEMPORARY TABLE left_behind ON COMMIT DROP AS
SELECT key, content_hash, simhash, coalesce(content_hash, int8send(simhash)) AS content FROM document e
WHERE collection_id = %(against_id)s::int
  AND NOT EXISTS (SELECT FROM document d WHERE d.collection_id = %(collection_id)s::int AND d.key = e.key)

-- add_moved: of the same content the first that has arrived is the first that was left behind, and so on
INSERT INTO analysis_difference (analysis_id, key, status, distance, counterpart)
SELECT %(id)s::int, a.key, 'moved', 0, l.key
FROM (SELECT key, content, row_number() OVER (PARTITION BY content ORDER BY key) AS number FROM arrived) a
JOIN (SELECT key, content, row_number() OVER (PARTITION BY content ORDER BY key) AS number FROM left_behind) l
     USING (content, number)

-- add_nearly_moved: the same for fingerprints that are near one another, the nearest first
INSERT INTO analysis_difference (analysis_id, key, status, distance, counterpart)
SELECT %(id)s::int, a.key, 'moved', a.distance, l.key
FROM (SELECT key, n.other, n.distance, row_number() OVER (PARTITION BY n.other ORDER BY n.distance, key) AS number
      FROM arrived
      JOIN unnest(%(simhashes)b::bigint[], %(others)b::bigint[], %(distances)b::bigint[]) n (simhash, other, distance)
           USING (simhash)) a
JOIN (SELECT key, simhash, row_number() OVER (PARTITION BY simhash ORDER BY key) AS number FROM left_behind) l
     ON l.simhash = a.other AND l.number = a.number

-- remove_moved_from_arrived: those whose old key is known
DELETE FROM arrived a USING analysis_difference d
WHERE d.analysis_id = %(id)s::int AND d.status = 'moved' AND d.key = a.key

-- remove_moved_from_left_behind: those whose new key is known
DELETE FROM left_behind l USING analysis_difference d
WHERE d.analysis_id = %(id)s::int AND d.status = 'moved' AND d.counterpart = l.key

-- fingerprints_set_apart: the distinct fingerprints of either of these, eight bytes each
SELECT coalesce(string_agg(int8send(simhash), ''::bytea ORDER BY simhash), '')
FROM (SELECT DISTINCT simhash FROM {set_apart} WHERE simhash IS NOT NULL) f

-- add_set_apart: what has not moved; the counterpart is what resembles it among all documents of the other collection
INSERT INTO analysis_difference (analysis_id, key, status, distance, counterpart)
SELECT %(id)s::int, s.key, %(status)s::text, CASE WHEN c.same IS NOT NULL THEN 0 ELSE n.distance END,
       coalesce(c.same, c.near)
FROM {set_apart} s
LEFT JOIN unnest(%(simhashes)b::bigint[], %(others)b::bigint[], %(distances)b::bigint[]) n (simhash, other, distance)
       ON n.simhash = s.simhash
CROSS JOIN LATERAL (
    SELECT coalesce((SELECT key FROM document
                     WHERE collection_id = %(among_id)s::int AND content_hash = s.content_hash ORDER BY key LIMIT 1),
                    (SELECT key FROM document
                     WHERE collection_id = %(among_id)s::int AND simhash = s.simhash ORDER BY key LIMIT 1)) AS same,
           (SELECT key FROM document
            WHERE collection_id = %(among_id)s::int AND simhash = n.other ORDER BY key LIMIT 1) AS near) c

-- count_differences: by status and distance
SELECT status, distance, count(*) FROM analysis_difference WHERE analysis_id = %(id)s::int GROUP BY status, distance

-- documents: how many there are
SELECT count(*) FROM document WHERE collection_id = %(collection_id)s::int

-- finished: what an analysis has found that was broken off between this and the end of its operation
SELECT result FROM analysis WHERE id = %(id)s::int

-- base: the latest analysis whose pairs hold all that are within a threshold
SELECT a.id, (a.result ->> 'pairs')::bigint AS pairs
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

-- latest: the latest analysis of a collection
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
        WHERE collection_id = c.collection_id AND simhash = f.simhash AND content_at <= c.moment
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
                 AND e.content_at <= a.moment) AS exact
FROM analysis a
JOIN analysis_fingerprint f ON f.analysis_id = a.id
CROSS JOIN LATERAL (
    SELECT key, content_hash FROM document
    WHERE collection_id = a.collection_id AND simhash = f.simhash AND content_at <= a.moment
      AND key > CASE WHEN f.number = %(number)s::int THEN %(after)s::text ELSE '' END
    ORDER BY key LIMIT %(limit)s::int) d
JOIN analysis_cluster c ON c.analysis_id = a.id AND c.number = f.cluster
WHERE a.id = %(id)s::int AND f.number >= %(number)s::int AND f.number < %(end)s::int
ORDER BY f.number, d.key
LIMIT %(limit)s::int

-- without_fingerprint: documents that have none and share their content with another one
SELECT d.key, (SELECT key FROM document e
               WHERE e.collection_id = a.collection_id AND e.content_hash = d.content_hash AND e.content_at <= a.moment
               ORDER BY key LIMIT 1) AS representative
FROM analysis a JOIN document d ON d.collection_id = a.collection_id
WHERE a.id = %(id)s::int AND d.simhash IS NULL AND d.key > %(after)s::text AND d.content_at <= a.moment
  AND EXISTS (SELECT FROM document e
              WHERE e.collection_id = a.collection_id AND e.content_hash = d.content_hash AND e.key <> d.key
                AND e.content_at <= a.moment)
ORDER BY d.key
LIMIT %(limit)s::int

-- described: fingerprints by their numbers, each with some of its documents
SELECT f.number, f.simhash, f.documents,
       ARRAY(SELECT key FROM document
             WHERE collection_id = a.collection_id AND simhash = f.simhash AND content_at <= a.moment
             ORDER BY key LIMIT %(keys)s::int) AS keys
FROM analysis a JOIN analysis_fingerprint f ON f.analysis_id = a.id
WHERE a.id = %(id)s::int AND f.number = ANY(%(numbers)b::int[])

-- differences: the next documents that differ, of one status or of all
SELECT key, status, distance, counterpart FROM analysis_difference
WHERE analysis_id = %(id)s::int AND key > %(after)s::text
  AND (status = %(status)s::text OR %(status)s::text IS NULL)
ORDER BY key
LIMIT %(limit)s::int

-- unchanged: the next documents with the same content as before under the same key
SELECT d.key, 'unchanged', CASE WHEN d.simhash IS NOT NULL THEN 0 END, d.key
FROM analysis a
JOIN document d ON d.collection_id = a.collection_id AND d.content_at <= a.moment
WHERE a.id = %(id)s::int AND d.key > %(after)s::text
  AND NOT EXISTS (SELECT FROM analysis_difference u WHERE u.analysis_id = a.id AND u.key = d.key)
ORDER BY d.key
LIMIT %(limit)s::int

-- flagged: of the next documents of a collection those that an analysis has flagged, or has not, as many as are wanted;
-- the last one is where the next part begins
WITH next AS MATERIALIZED (
    SELECT key, simhash, content_hash, words, metadata, created_at, updated_at, content_at FROM document
    WHERE collection_id = %(collection_id)s::int AND key > %(after)s::text
    ORDER BY key
    LIMIT %(read)s::int)
SELECT key, simhash, content_hash, words, metadata, created_at, updated_at
FROM next
WHERE EXISTS (SELECT FROM analysis a JOIN analysis_fingerprint f ON f.analysis_id = a.id
              WHERE a.id = %(id)s::int AND f.simhash = next.simhash AND next.content_at <= a.moment)
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
