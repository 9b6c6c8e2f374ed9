"""Who runs first. Policies rank sequences; how much runs is asked of the roofline package."""
