#include "k3/cli/commands.h"

int main(int argc, char** argv) { return k3::cli::cli_main(argc, argv); }
