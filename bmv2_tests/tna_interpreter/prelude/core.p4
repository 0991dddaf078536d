// Everything of the language's core library that the interpreter needs is built into it.
