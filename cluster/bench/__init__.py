"""`treeserve bench`: modes against each other, against transformers and against the floor, in one
run. Speed is measured here and nowhere in the tests."""
