"""The work between a step's matrix products as native code, where a C++ compiler is at hand."""
