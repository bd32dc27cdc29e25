"""Persistent homology of float volumes on their cubical complex, and Betti matching of two volumes.

Exact, for crops of up to about 64³ (`metric` counts much faster in binary volumes of whole scans).

- Wagner, Chen, Vuçini: Efficient computation of persistent homology for cubical data. Topological Methods in Data
  Analysis and Visualization II, 2012.
- Stucki, Paetzold, Shit, Menze, Bauer: Topologically faithful image segmentation via induced matching of persistence
  barcodes. ICML 2023.
- Stucki, Bürgin, Paetzold, Bauer: Efficient Betti matching enables topology-aware 3D segmentation via persistent
  homology. arXiv 2407.04683, 2024.
"""

from __future__ import annotations

from runner_vesuvius.persistence.matching import Matching, Pairs, barcode, match

__all__ = ["Matching", "Pairs", "barcode", "match"]
