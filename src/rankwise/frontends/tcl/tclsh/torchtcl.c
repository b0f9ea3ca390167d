// libtorchtcl.so, for `load ./libtorchtcl.so` in a stock tclsh: runs torchtcl.tcl, which it holds.
//
// Neither Tcl's headers nor its library are needed to build it. Tcl 8 hands every extension a table of
// its functions through the interpreter, in which each keeps its place forever; what Tcl_InitStubs of
// Tcl's own library does with it is done here by hand, for the two functions that are used.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// From tcl.h and tclDecls.h.
enum { TCL_ERROR = 1, TCL_GLOBAL_ONLY = 1, TCL_EVAL_GLOBAL = 0x020000 };
enum { PLACE_OF_SET_VAR_2 = 238, PLACE_OF_EVAL_EX = 291 };
static const unsigned MAGIC_OF_TCL_8 = 0xFCA3BACF;

typedef struct {
  unsigned magic;
  void* hooks;
  void* functions[];
} Stubs;

// The beginning of Tcl's struct Interp, as far as extensions may know it.
typedef struct {
  char* result;
  void* free_result;
  int error_line;
  const Stubs* stubs;
} Interp;

typedef const char* SetVar2(Interp*, const char* name, const char* element, const char* value, int flags);
typedef int EvalEx(Interp*, const char* script, int length, int flags);

extern const char torchtcl_script[];
extern const size_t torchtcl_script_length;

// The folder that this library lies in, links followed; "" where it cannot be told.
static void find_folder(char folder[PATH_MAX]) {
  Dl_info info;
  if (!dladdr(torchtcl_script, &info) || !info.dli_fname || !realpath(info.dli_fname, folder)) {
    folder[0] = '\0';
    return;
  }
  char* slash = strrchr(folder, '/');
  if (slash) *slash = '\0';
}

__attribute__((visibility("default"))) int Torchtcl_Init(Interp* interp) {
  const Stubs* stubs = interp->stubs;
  if (!stubs || stubs->magic != MAGIC_OF_TCL_8) {
    fputs("libtorchtcl.so is for Tcl 8; with another Tcl say: package require torchtcl\n", stderr);
    return TCL_ERROR;
  }
  SetVar2* set_var = (SetVar2*)stubs->functions[PLACE_OF_SET_VAR_2];
  EvalEx* eval = (EvalEx*)stubs->functions[PLACE_OF_EVAL_EX];
  char folder[PATH_MAX];
  find_folder(folder);
  set_var(interp, "torchtcl_folder", NULL, folder, TCL_GLOBAL_ONLY);
  return eval(interp, torchtcl_script, (int)torchtcl_script_length, TCL_EVAL_GLOBAL);
}
