// A shared object that is not a plugin.
extern "C" [[gnu::visibility("default")]] int somebody_elses() { return 1; }
