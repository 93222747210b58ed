# Run as a script: writes FILE's text as a raw string constant NAME into HEADER.
file(READ ${FILE} text)
string(LENGTH "${text}" length)
if(length GREATER 60000)
  message(FATAL_ERROR "${FILE}: too long for one string literal")
endif()
file(WRITE ${HEADER} "// Written by cmake/EmbedText.cmake from a checked-in file.
#pragma once

namespace ninefold::lab::generated {

inline constexpr const char* ${NAME} = R\"json(${text})json\";

}  // namespace ninefold::lab::generated
")
