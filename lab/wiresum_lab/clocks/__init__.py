"""Time in tests: `by_hand` for what takes the time as a function, `for_threads` for threads that wait by a `Clock`,
`for_asyncio` for coroutines. In none of them does a test wait, and none depends on how busy the machine is."""
