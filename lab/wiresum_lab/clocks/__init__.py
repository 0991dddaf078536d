"""Time in tests: `by_hand` for code that takes the time as a function, `for_threads` for threads that wait by a
`Clock`, `for_asyncio` for coroutines. No test waits in real time, or depends on the load of the machine."""
