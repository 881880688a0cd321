// Error: empty, part of the substitute for Gloo (see gloo/context.h). c10d's header includes this
// file, but uses no name of it.
#pragma once
