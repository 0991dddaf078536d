// The interpreter has the needed parts of the language's core library built in.
