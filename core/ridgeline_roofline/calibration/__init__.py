"""What a calibration measures, how it is fitted and judged, and how its record is kept. No torch, no I/O."""
