"""`laptime run`: someone's training script, unedited. What it trains is found as it is used."""
