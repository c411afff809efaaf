"""One module per kind of slow tier, named as machine files name it; `open_kind` takes what `open_tiers` takes."""
