"""Probe or scan: both are exact, the cheaper one is taken."""

from app.core.probes import ProbePlan

# Microseconds on one core: PostgreSQL 18, warm, covering indexes (docs/performance.md). Only the ratios matter.
PROBE_COST = 1.6
CANDIDATE_COST = 0.12
SCAN_ROW_COST = 0.08

# The size of a collection is an estimate, and a poor one right after a bulk load. Where probing is this cheap anyway,
# a scan could save little and lose much.
ALWAYS_PROBE_BELOW = 1000.0


def scan_is_cheaper(plan: ProbePlan, fingerprints: int) -> bool:
    """Whether reading all `fingerprints` of a collection costs less than the probes and the candidates they read.

    Candidates are estimated as for uniform fingerprints.
    """
    probing = plan.probes * PROBE_COST + plan.share * fingerprints * CANDIDATE_COST
    return probing > ALWAYS_PROBE_BELOW and probing > fingerprints * SCAN_ROW_COST
