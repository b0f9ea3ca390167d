# The target rankwise::rankwise. Find it with -Drankwise_DIR="$(python -c 'import rankwise; print(rankwise.get_cmake_dir())')".
get_filename_component(_rankwise_lib "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
if(NOT TARGET rankwise::rankwise)
  add_library(rankwise::rankwise SHARED IMPORTED)
  set_target_properties(rankwise::rankwise PROPERTIES
    IMPORTED_LOCATION "${_rankwise_lib}/librankwise.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_rankwise_lib}/../include")
endif()
unset(_rankwise_lib)
