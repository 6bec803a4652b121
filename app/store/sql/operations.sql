-- create: nothing where the Idempotency-Key was used before, or where a rebuild is unfinished
INSERT INTO operation (kind, parameters, idempotency_key, collection_id)
VALUES (%(kind)s::text, %(parameters)s::jsonb, %(idempotency_key)s::text, %(collection_id)s::int)
ON CONFLICT DO NOTHING
RETURNING {columns}

-- by_key: the operation that this Idempotency-Key made
SELECT {columns} FROM operation WHERE idempotency_key = %(idempotency_key)s::text

-- unfinished: the operation of a kind that isn't finished, if there is one
SELECT {columns} FROM operation
WHERE kind = %(kind)s::text AND status IN ('queued', 'running')
ORDER BY id
LIMIT 1

-- get: one operation
SELECT {columns} FROM operation WHERE id = %(id)s::int AND kind = %(kind)s::text

-- page: operations of a kind before one of them, the youngest first
SELECT {columns} FROM operation
WHERE kind = %(kind)s::text AND id < %(before)s::bigint
ORDER BY id DESC
LIMIT %(limit)s::int

-- request_cancel: what nobody has begun ends at once; no row where it is finished or past the point of no return
UPDATE operation
SET cancel_requested = true,
    status = CASE status WHEN 'queued' THEN 'canceled' ELSE status END,
    finished_at = CASE status WHEN 'queued' THEN now() END
WHERE id = %(id)s::int AND kind = %(kind)s::text AND status IN ('queued', 'running') AND cancelable
RETURNING {columns}

-- is_cancel_requested: whether somebody wants it to end
SELECT cancel_requested FROM operation WHERE id = %(id)s::int

-- lock: belongs to the session, so it goes with the process that works on the operation, however that ends
SELECT pg_try_advisory_lock(%(class)s::int, %(id)s::int)

-- begin: no row where it is finished
UPDATE operation
SET status = 'running', started_at = coalesce(started_at, now()), runs = runs + 1
WHERE id = %(id)s::int AND status IN ('queued', 'running')
RETURNING {columns}

-- report: how far it is, and from where the next run would go on
UPDATE operation
SET phase = %(phase)s::text, done = %(done)s::bigint, total = %(total)s::bigint, checkpoint = %(checkpoint)s::jsonb
WHERE id = %(id)s::int

-- commit: from here on it can't be cancelled; no row where that was asked for before
UPDATE operation SET cancelable = false
WHERE id = %(id)s::int AND NOT cancel_requested
RETURNING id

-- note_failure: why it is going to fail, before what it made is removed
UPDATE operation SET error = %(error)s::text WHERE id = %(id)s::int

-- finish: how it ended
UPDATE operation
SET status = %(status)s::text, result = %(result)s::jsonb, error = %(error)s::text, finished_at = now()
WHERE id = %(id)s::int

-- unattended: unfinished operations that no session works on, and that don't wait in the queue
SELECT id FROM operation o
WHERE status IN ('queued', 'running')
  AND NOT EXISTS (
      SELECT FROM tiroir_queue.procrastinate_jobs j
      WHERE j.status = 'todo' AND (j.args ->> 'operation_id')::bigint = o.id)
  AND NOT EXISTS (
      SELECT FROM pg_locks l
      WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND l.classid::bigint = %(class)s::bigint AND l.objid::bigint = o.id)
ORDER BY id

-- of_collection: operations of a collection before one of them, the youngest first
SELECT {columns} FROM operation
WHERE collection_id = %(collection_id)s::int AND kind = %(kind)s::text AND id < %(before)s::bigint
ORDER BY id DESC
LIMIT %(limit)s::int

-- delete_finished: one operation of a collection, if it is finished
DELETE FROM operation
WHERE id = %(id)s::int AND collection_id = %(collection_id)s::int AND kind = %(kind)s::text AND finished_at IS NOT NULL

-- delete_superseded: finished analyses after which one with the same settings has succeeded
DELETE FROM operation o
WHERE kind = 'analysis' AND finished_at IS NOT NULL
  AND EXISTS (SELECT FROM operation later
              WHERE later.collection_id = o.collection_id AND later.id > o.id AND later.kind = o.kind
                AND later.status = 'succeeded' AND later.parameters = o.parameters)

-- delete_of_collection: those that are finished
DELETE FROM operation WHERE collection_id = %(collection_id)s::int AND finished_at IS NOT NULL

-- has_unfinished: whether operations of a collection aren't finished
SELECT EXISTS (SELECT FROM operation WHERE collection_id = %(collection_id)s::int AND finished_at IS NULL)
