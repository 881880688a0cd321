// Part of the Gloo stand-in (see gloo/context.h): c10d's header includes this file, but uses no
// name of it.
#pragma once
