"""Defects that tests must catch, one for each thing that must not happen."""

from ridgeline_testing.defects.answers import ANSWERS
from ridgeline_testing.defects.blocks import BLOCKS
from ridgeline_testing.defects.launches import LAUNCHES
from ridgeline_testing.defects.scheduling import SCHEDULING
from ridgeline_testing.defects.sizing import SIZING
from ridgeline_testing.planting import Defect

DEFECTS: tuple[Defect, ...] = (*BLOCKS, *LAUNCHES, *SCHEDULING, *ANSWERS, *SIZING)
