"""Who runs first, who has to go, and what each tenant has had. How much runs is asked of the roofline package."""
