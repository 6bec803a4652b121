"""What needs no stored document: fingerprints of texts, and the distance of two fingerprints."""

from typing import Annotated

from fastapi import APIRouter, Query

from app.api.answers import DistanceAnswer, FingerprintAnswer
from app.api.routing import NO_PARAMETERS, JsonRoute, problems
from app.api.schemas import DistanceParameters, FingerprintRequest
from app.core.fingerprint import distance
from app.service.fingerprinting import digest_text

router = APIRouter(prefix="/v1", tags=["fingerprints"], route_class=JsonRoute)


@router.post("/fingerprints", responses=problems(400, 413, 415), dependencies=[NO_PARAMETERS])
async def fingerprint(body: FingerprintRequest) -> FingerprintAnswer:
    """The fingerprint of a text, by the scheme `article` or by parts of it. Nothing is stored."""
    assert body.text is not None  # noqa: S101  the validator has seen it
    scheme = body.scheme.scheme()
    return FingerprintAnswer.of(await digest_text(body.text, scheme), scheme)


@router.get("/distance", responses=problems())
async def get_distance(fingerprints: Annotated[DistanceParameters, Query()]) -> DistanceAnswer:
    """How many bits of two fingerprints differ."""
    return DistanceAnswer(distance=distance(fingerprints.a, fingerprints.b))
