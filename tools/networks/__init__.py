"""Networks whose speed on Jetsons has been published, built from the layer tables of their papers, without weights."""
