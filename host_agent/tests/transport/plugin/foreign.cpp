// A shared object that is no plugin.
extern "C" [[gnu::visibility("default")]] int somebody_elses() { return 1; }
