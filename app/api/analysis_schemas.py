"""What comes in about analyses."""

from typing import Annotated, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from app.api.schemas import CollectionName, PageParameters, Request, Threshold, whole_number
from app.core.model import Change, Clustering, Preference
from app.service.analyses import NewAnalysis

ClusterNumber = Annotated[int, Field(ge=1, le=2**31 - 1, examples=[1]), BeforeValidator(whole_number)]
ContentHash = Annotated[str, Field(pattern="^[0-9a-f]{32}$", examples=["0123456789abcdef" * 2])]


class NewAnalysisRequest(Request):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"threshold": 3, "clusters": "components", "representative": "oldest"},
                {"threshold": 3, "against": "crawl-41"},
            ]
        }
    )

    threshold: Threshold | None = None
    clusters: Clustering = Field(
        default=Clustering.COMPONENTS,
        strict=False,
        description="components: all that chains of near-duplicates connect. star: all that is within the threshold of"
        " one document.",
    )
    representative: Preference = Field(
        default=Preference.OLDEST, strict=False, description="Which document of a cluster stands for it."
    )
    against: CollectionName | None = Field(
        default=None, description="An earlier collection: tells what became of its documents; makes no clusters."
    )

    @model_validator(mode="after")
    def _compares_or_clusters(self) -> Self:
        if self.against is not None and self.model_fields_set & {"clusters", "representative"}:
            raise PydanticCustomError("invalid_input", "with against there are no clusters and no representative")
        return self

    def new(self) -> NewAnalysis:
        return NewAnalysis(self.threshold, self.clusters, self.representative, self.against)


class DifferenceParameters(PageParameters):
    status: Change | None = Field(default=None, description="Left out: all but what is unchanged.")
