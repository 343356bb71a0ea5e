"""An honest stand-in for ms-swift 4.6.0 in pure Python and numpy: it trains, merges, answers and serves for real, in miniature."""
